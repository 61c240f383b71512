"""Decoders: what the bytes of a dump file mean. Nothing is executed, and no size is believed unchecked.

header.py                  what all formats have in common; files that are made of several tensors
npy.py                     numpy, and files of elements alone
dump_data.py, overflow.py  CANN's DumpData; overflow records
pt.py and pt_*.py,         `torch.save`, with a machine for its pickles that runs nothing; checkpoints
pickle_machine.py, distcp.py
safetensors.py,            safetensors, and ONNX, with the wire format of protobuf
tensor_proto.py
statistic_csv.py           tables of statistics
zip_archive.py             archives
"""
