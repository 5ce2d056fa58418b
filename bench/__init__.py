"""The benchmark: eager PyTorch, torch.compile and Markstep train the same models, taking turns.

    markstep bench --suite quick                      # under five minutes on two cores
    markstep bench --suite full --json rows.json      # every model, fp32 and bf16; rows are written as it goes
    markstep bench --models bert-base --dtypes bf16 --contenders eager,markstep
    bench/gpu.sh                                      # the full suite on CUDA

Files, in the order in which data flows: `data`, `modules`, `models` (what is trained), `training` (one step of it),
`contenders` (who trains it), `memory`, `worker` (a process that trains on command), `probe` and `trace` (side
measurements in a process of their own), `process` (the parent's end of a worker), `measure` (who runs when), `rows`
(figures from measurements), `table` (their print), `machine`, `cli`.
"""
