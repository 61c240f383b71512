"""From the files of a step to its plan: headers, rows of the index, jobs."""
