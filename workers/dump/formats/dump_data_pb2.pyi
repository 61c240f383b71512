from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DT_UNDEFINED: _ClassVar[DataType]
    DT_FLOAT: _ClassVar[DataType]
    DT_FLOAT16: _ClassVar[DataType]
    DT_INT8: _ClassVar[DataType]
    DT_UINT8: _ClassVar[DataType]
    DT_INT16: _ClassVar[DataType]
    DT_UINT16: _ClassVar[DataType]
    DT_INT32: _ClassVar[DataType]
    DT_INT64: _ClassVar[DataType]
    DT_UINT32: _ClassVar[DataType]
    DT_UINT64: _ClassVar[DataType]
    DT_BOOL: _ClassVar[DataType]
    DT_DOUBLE: _ClassVar[DataType]
    DT_STRING: _ClassVar[DataType]
    DT_DUAL_SUB_INT8: _ClassVar[DataType]
    DT_DUAL_SUB_UINT8: _ClassVar[DataType]
    DT_COMPLEX64: _ClassVar[DataType]
    DT_COMPLEX128: _ClassVar[DataType]
    DT_QINT8: _ClassVar[DataType]
    DT_QINT16: _ClassVar[DataType]
    DT_QINT32: _ClassVar[DataType]
    DT_QUINT8: _ClassVar[DataType]
    DT_QUINT16: _ClassVar[DataType]
    DT_RESOURCE: _ClassVar[DataType]
    DT_STRING_REF: _ClassVar[DataType]
    DT_DUAL: _ClassVar[DataType]
    DT_VARIANT: _ClassVar[DataType]
    DT_BF16: _ClassVar[DataType]
    DT_INT4: _ClassVar[DataType]
    DT_UINT1: _ClassVar[DataType]
    DT_INT2: _ClassVar[DataType]
    DT_UINT2: _ClassVar[DataType]
    DT_COMPLEX32: _ClassVar[DataType]
    DT_HIFLOAT8: _ClassVar[DataType]
    DT_FLOAT8_E5M2: _ClassVar[DataType]
    DT_FLOAT8_E4M3FN: _ClassVar[DataType]
    DT_FLOAT8_E8M0: _ClassVar[DataType]
    DT_FLOAT6_E3M2: _ClassVar[DataType]
    DT_FLOAT6_E2M3: _ClassVar[DataType]
    DT_FLOAT4_E2M1: _ClassVar[DataType]
    DT_FLOAT4_E1M2: _ClassVar[DataType]
    DT_HIFLOAT4: _ClassVar[DataType]
    DT_HIFLOAT4_SCALE: _ClassVar[DataType]

class Format(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORMAT_NCHW: _ClassVar[Format]
    FORMAT_NHWC: _ClassVar[Format]
    FORMAT_ND: _ClassVar[Format]
    FORMAT_NC1HWC0: _ClassVar[Format]
    FORMAT_FRACTAL_Z: _ClassVar[Format]
    FORMAT_NC1C0HWPAD: _ClassVar[Format]
    FORMAT_NHWC1C0: _ClassVar[Format]
    FORMAT_FSR_NCHW: _ClassVar[Format]
    FORMAT_FRACTAL_DECONV: _ClassVar[Format]
    FORMAT_C1HWNC0: _ClassVar[Format]
    FORMAT_FRACTAL_DECONV_TRANSPOSE: _ClassVar[Format]
    FORMAT_FRACTAL_DECONV_SP_STRIDE_TRANS: _ClassVar[Format]
    FORMAT_NC1HWC0_C04: _ClassVar[Format]
    FORMAT_FRACTAL_Z_C04: _ClassVar[Format]
    FORMAT_CHWN: _ClassVar[Format]
    FORMAT_FRACTAL_DECONV_SP_STRIDE8_TRANS: _ClassVar[Format]
    FORMAT_HWCN: _ClassVar[Format]
    FORMAT_NC1KHKWHWC0: _ClassVar[Format]
    FORMAT_BN_WEIGHT: _ClassVar[Format]
    FORMAT_FILTER_HWCK: _ClassVar[Format]
    FORMAT_HASHTABLE_LOOKUP_LOOKUPS: _ClassVar[Format]
    FORMAT_HASHTABLE_LOOKUP_KEYS: _ClassVar[Format]
    FORMAT_HASHTABLE_LOOKUP_VALUE: _ClassVar[Format]
    FORMAT_HASHTABLE_LOOKUP_OUTPUT: _ClassVar[Format]
    FORMAT_HASHTABLE_LOOKUP_HITS: _ClassVar[Format]
    FORMAT_C1HWNCoC0: _ClassVar[Format]
    FORMAT_MD: _ClassVar[Format]
    FORMAT_NDHWC: _ClassVar[Format]
    FORMAT_FRACTAL_ZZ: _ClassVar[Format]
    FORMAT_FRACTAL_NZ: _ClassVar[Format]
    FORMAT_NCDHW: _ClassVar[Format]
    FORMAT_DHWCN: _ClassVar[Format]
    FORMAT_NDC1HWC0: _ClassVar[Format]
    FORMAT_FRACTAL_Z_3D: _ClassVar[Format]
    FORMAT_CN: _ClassVar[Format]
    FORMAT_NC: _ClassVar[Format]
    FORMAT_DHWNC: _ClassVar[Format]
    FORMAT_FRACTAL_Z_3D_TRANSPOSE: _ClassVar[Format]
    FORMAT_FRACTAL_ZN_LSTM: _ClassVar[Format]
    FORMAT_FRACTAL_Z_G: _ClassVar[Format]
    FORMAT_RESERVED: _ClassVar[Format]
    FORMAT_ALL: _ClassVar[Format]
    FORMAT_NULL: _ClassVar[Format]
    FORMAT_ND_RNN_BIAS: _ClassVar[Format]
    FORMAT_FRACTAL_ZN_RNN: _ClassVar[Format]
    FORMAT_YUV: _ClassVar[Format]
    FORMAT_YUV_A: _ClassVar[Format]
    FORMAT_NCL: _ClassVar[Format]
    FORMAT_FRACTAL_Z_WINO: _ClassVar[Format]
    FORMAT_C1HWC0: _ClassVar[Format]
    FORMAT_MAX: _ClassVar[Format]

class BufferType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    L1: _ClassVar[BufferType]

class SpaceType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOG: _ClassVar[SpaceType]
DT_UNDEFINED: DataType
DT_FLOAT: DataType
DT_FLOAT16: DataType
DT_INT8: DataType
DT_UINT8: DataType
DT_INT16: DataType
DT_UINT16: DataType
DT_INT32: DataType
DT_INT64: DataType
DT_UINT32: DataType
DT_UINT64: DataType
DT_BOOL: DataType
DT_DOUBLE: DataType
DT_STRING: DataType
DT_DUAL_SUB_INT8: DataType
DT_DUAL_SUB_UINT8: DataType
DT_COMPLEX64: DataType
DT_COMPLEX128: DataType
DT_QINT8: DataType
DT_QINT16: DataType
DT_QINT32: DataType
DT_QUINT8: DataType
DT_QUINT16: DataType
DT_RESOURCE: DataType
DT_STRING_REF: DataType
DT_DUAL: DataType
DT_VARIANT: DataType
DT_BF16: DataType
DT_INT4: DataType
DT_UINT1: DataType
DT_INT2: DataType
DT_UINT2: DataType
DT_COMPLEX32: DataType
DT_HIFLOAT8: DataType
DT_FLOAT8_E5M2: DataType
DT_FLOAT8_E4M3FN: DataType
DT_FLOAT8_E8M0: DataType
DT_FLOAT6_E3M2: DataType
DT_FLOAT6_E2M3: DataType
DT_FLOAT4_E2M1: DataType
DT_FLOAT4_E1M2: DataType
DT_HIFLOAT4: DataType
DT_HIFLOAT4_SCALE: DataType
FORMAT_NCHW: Format
FORMAT_NHWC: Format
FORMAT_ND: Format
FORMAT_NC1HWC0: Format
FORMAT_FRACTAL_Z: Format
FORMAT_NC1C0HWPAD: Format
FORMAT_NHWC1C0: Format
FORMAT_FSR_NCHW: Format
FORMAT_FRACTAL_DECONV: Format
FORMAT_C1HWNC0: Format
FORMAT_FRACTAL_DECONV_TRANSPOSE: Format
FORMAT_FRACTAL_DECONV_SP_STRIDE_TRANS: Format
FORMAT_NC1HWC0_C04: Format
FORMAT_FRACTAL_Z_C04: Format
FORMAT_CHWN: Format
FORMAT_FRACTAL_DECONV_SP_STRIDE8_TRANS: Format
FORMAT_HWCN: Format
FORMAT_NC1KHKWHWC0: Format
FORMAT_BN_WEIGHT: Format
FORMAT_FILTER_HWCK: Format
FORMAT_HASHTABLE_LOOKUP_LOOKUPS: Format
FORMAT_HASHTABLE_LOOKUP_KEYS: Format
FORMAT_HASHTABLE_LOOKUP_VALUE: Format
FORMAT_HASHTABLE_LOOKUP_OUTPUT: Format
FORMAT_HASHTABLE_LOOKUP_HITS: Format
FORMAT_C1HWNCoC0: Format
FORMAT_MD: Format
FORMAT_NDHWC: Format
FORMAT_FRACTAL_ZZ: Format
FORMAT_FRACTAL_NZ: Format
FORMAT_NCDHW: Format
FORMAT_DHWCN: Format
FORMAT_NDC1HWC0: Format
FORMAT_FRACTAL_Z_3D: Format
FORMAT_CN: Format
FORMAT_NC: Format
FORMAT_DHWNC: Format
FORMAT_FRACTAL_Z_3D_TRANSPOSE: Format
FORMAT_FRACTAL_ZN_LSTM: Format
FORMAT_FRACTAL_Z_G: Format
FORMAT_RESERVED: Format
FORMAT_ALL: Format
FORMAT_NULL: Format
FORMAT_ND_RNN_BIAS: Format
FORMAT_FRACTAL_ZN_RNN: Format
FORMAT_YUV: Format
FORMAT_YUV_A: Format
FORMAT_NCL: Format
FORMAT_FRACTAL_Z_WINO: Format
FORMAT_C1HWC0: Format
FORMAT_MAX: Format
L1: BufferType
LOG: SpaceType

class Shape(_message.Message):
    __slots__ = ("dim",)
    DIM_FIELD_NUMBER: _ClassVar[int]
    dim: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dim: _Optional[_Iterable[int]] = ...) -> None: ...

class OriginalOp(_message.Message):
    __slots__ = ("name", "output_index", "data_type", "format")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    output_index: int
    data_type: DataType
    format: Format
    def __init__(self, name: _Optional[bytes] = ..., output_index: _Optional[int] = ..., data_type: _Optional[_Union[DataType, str]] = ..., format: _Optional[_Union[Format, str]] = ...) -> None: ...

class OpOutput(_message.Message):
    __slots__ = ("data_type", "format", "shape", "original_op", "data", "size", "original_shape", "sub_format", "address", "offset", "arg_index")
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_OP_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_SHAPE_FIELD_NUMBER: _ClassVar[int]
    SUB_FORMAT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ARG_INDEX_FIELD_NUMBER: _ClassVar[int]
    data_type: DataType
    format: Format
    shape: Shape
    original_op: OriginalOp
    data: bytes
    size: int
    original_shape: Shape
    sub_format: int
    address: int
    offset: int
    arg_index: int
    def __init__(self, data_type: _Optional[_Union[DataType, str]] = ..., format: _Optional[_Union[Format, str]] = ..., shape: _Optional[_Union[Shape, _Mapping]] = ..., original_op: _Optional[_Union[OriginalOp, _Mapping]] = ..., data: _Optional[bytes] = ..., size: _Optional[int] = ..., original_shape: _Optional[_Union[Shape, _Mapping]] = ..., sub_format: _Optional[int] = ..., address: _Optional[int] = ..., offset: _Optional[int] = ..., arg_index: _Optional[int] = ...) -> None: ...

class OpInput(_message.Message):
    __slots__ = ("data_type", "format", "shape", "data", "size", "original_shape", "sub_format", "address", "offset", "arg_index", "input_type")
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_SHAPE_FIELD_NUMBER: _ClassVar[int]
    SUB_FORMAT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ARG_INDEX_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    data_type: DataType
    format: Format
    shape: Shape
    data: bytes
    size: int
    original_shape: Shape
    sub_format: int
    address: int
    offset: int
    arg_index: int
    input_type: int
    def __init__(self, data_type: _Optional[_Union[DataType, str]] = ..., format: _Optional[_Union[Format, str]] = ..., shape: _Optional[_Union[Shape, _Mapping]] = ..., data: _Optional[bytes] = ..., size: _Optional[int] = ..., original_shape: _Optional[_Union[Shape, _Mapping]] = ..., sub_format: _Optional[int] = ..., address: _Optional[int] = ..., offset: _Optional[int] = ..., arg_index: _Optional[int] = ..., input_type: _Optional[int] = ...) -> None: ...

class OpBuffer(_message.Message):
    __slots__ = ("buffer_type", "data", "size")
    BUFFER_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    buffer_type: BufferType
    data: bytes
    size: int
    def __init__(self, buffer_type: _Optional[_Union[BufferType, str]] = ..., data: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class OpAttr(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    value: bytes
    def __init__(self, name: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class Workspace(_message.Message):
    __slots__ = ("type", "data", "size")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    type: SpaceType
    data: bytes
    size: int
    def __init__(self, type: _Optional[_Union[SpaceType, str]] = ..., data: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class DumpData(_message.Message):
    __slots__ = ("version", "dump_time", "output", "input", "buffer", "op_name", "attr", "space", "dfx_message")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DUMP_TIME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OP_NAME_FIELD_NUMBER: _ClassVar[int]
    ATTR_FIELD_NUMBER: _ClassVar[int]
    SPACE_FIELD_NUMBER: _ClassVar[int]
    DFX_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    version: bytes
    dump_time: int
    output: _containers.RepeatedCompositeFieldContainer[OpOutput]
    input: _containers.RepeatedCompositeFieldContainer[OpInput]
    buffer: _containers.RepeatedCompositeFieldContainer[OpBuffer]
    op_name: bytes
    attr: _containers.RepeatedCompositeFieldContainer[OpAttr]
    space: _containers.RepeatedCompositeFieldContainer[Workspace]
    dfx_message: bytes
    def __init__(self, version: _Optional[bytes] = ..., dump_time: _Optional[int] = ..., output: _Optional[_Iterable[_Union[OpOutput, _Mapping]]] = ..., input: _Optional[_Iterable[_Union[OpInput, _Mapping]]] = ..., buffer: _Optional[_Iterable[_Union[OpBuffer, _Mapping]]] = ..., op_name: _Optional[bytes] = ..., attr: _Optional[_Iterable[_Union[OpAttr, _Mapping]]] = ..., space: _Optional[_Iterable[_Union[Workspace, _Mapping]]] = ..., dfx_message: _Optional[bytes] = ...) -> None: ...
