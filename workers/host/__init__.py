"""What a process takes from its host and its user.

resources.py               processors and memory
paths.py                   home directories, directories for temporary files, our own modules
steady_clock.py            a clock for Dask that does not jump
heartbeat.py               notifications of systemd
credentials.py, yaml_file.py
                           credentials and YAML files of users
"""
