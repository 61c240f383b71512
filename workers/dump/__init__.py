"""Reading the files of a dump: their paths, their bytes, and the headers of every file format."""
