"""Reading the folders of runs and studies: a damaged file is a DataError that names it."""
