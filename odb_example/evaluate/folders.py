"""Names of the folders in which evaluations leave their results, inside a checkpoint's folder. Importing this costs nothing."""

VALIDATION_FOLDER, BENCHMARK_FOLDER = "eval_out_hf_valloss", "mmmu_mc_likelihood_hf"
