"""What a process takes from its host and its user.

resources.py               processors and memory, and a clock for Dask that does not jump
paths.py                   home directories, directories for temporary files, our own modules
heartbeat.py               when the process last made progress; notifications of systemd
credentials.py, yaml_file.py
                           credentials and YAML files of users
"""
