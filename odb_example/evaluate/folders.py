"""Names of the folders and files in which evaluations leave their results; importing them costs no torch."""

VALIDATION_FOLDER, BENCHMARK_FOLDER = "eval_out_hf_valloss", "mmmu_mc_likelihood_hf"
RESULTS, PREDICTIONS, EXCLUDED, AUDIT = (
    "mmmu_mc_likelihood_results.json", "predictions.jsonl", "excluded.jsonl", "score_audit.json",
)  # fmt: skip
