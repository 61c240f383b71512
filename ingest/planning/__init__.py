"""From the files of a step to its plan: inspection of headers, rows of the index, jobs."""
