"""What a process takes from its host and its user.

temporary.py, memory.py,   directories for temporary files, memory, processors
cpu.py
interpreter.py             the environment of a new interpreter
steady_clock.py            a clock for Dask that does not jump
heartbeat.py, watchdog.py  notifications of systemd
credentials.py,            credentials, YAML files and home directories of users
yaml_file.py, home.py
wording.py                 counts with their nouns, for messages
"""
