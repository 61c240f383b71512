"""Reading the files of a dump: paths, bytes, and the headers of every file format."""
