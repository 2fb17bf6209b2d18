layer_kw_dict = {"RNN": ["rnn"], "Batch norm": ["bn1"]}

data_struct_kw_dict = {
    "Parameters": ["in_arg", "arg_grad", "optimizer_state"],
    "Data Entries": ["data_entry"],
    "Workspace": ["workspace"],
}

memory_profile_path = "mxnet_gpu_memory_profiler.csv"

expected_sum = 1.5
