data_path = "."
