"""What ``PipelineServer.stats`` returns, as an example that `http` and `top` are tested against."""

from yarn_accel.pipeline.counters import Counters


def statistics(uptime_s=10.0, n_done=20, **other):
    counters = Counters()
    for _ in range(n_done):
        counters.requested("lu", "alice")
        counters.add("bytes_in", 800, "alice")
        seconds = {"read": 0.01, "queue": 0.02, "compute": 0.2, "write": 0.01, "total": 0.25}
        counters.answered("lu", "done", "alice", seconds, 800)
    snapshot = counters.snapshot()
    for tenant in snapshot["tenants"].values():
        tenant["queued"] = 2
    worker = {"worker": 7, "slot": 0, "device": "cpu:0", "pid": 4242, "state": "busy", "last_fault": "died"}
    worker |= {"busy_s": 0.2 * n_done, "n_jobs": n_done, "rss_bytes": 50 << 20, "affinity": [0, 1]}
    standbys = [{"worker": -1, "slot": -1, "device": "", "pid": pid, "state": "standby"} for pid in (43, 44)]
    gpu = {"device": "cuda:0", "name": "H200", "temperature_c": 41, "utilisation": 0.5}
    gpu |= {"memory_bytes": 3 << 30, "other_bytes": 1 << 30}
    pool = {"bytes": 5 << 20, "used_bytes": 4 << 20, "free_bytes": 1 << 20, "shared_bytes": 2 << 20}
    pool |= {"peak_bytes": 6 << 20, "bound_bytes": 8 << 20, "waiting": 1}
    read = {"bytes": 1 << 20, "peak_bytes": 2 << 20, "bound_bytes": 4 << 20}
    found = {"server": "w1", "protocol_version": 2, "pid": 4711, "uptime_s": uptime_s, "is_draining": False}
    found |= {"health": {"ok": True, "problems": []}, "in_flight": 3, "pool": pool}
    found |= {
        "open_connections": {"tcp/xxh3": 3, "memfd": 1},
        "workers": [worker, *standbys],
        "devices": [gpu],
    }
    found["queues"] = {"read": read, "write": {"bytes": 0, "peak_bytes": 1, "bound_bytes": 4 << 20}}
    found["stage_busy"] = {"read": 0.01 * n_done, "compute": 0.2 * n_done, "write": 0.01 * n_done}
    return {**found, **snapshot, **other}
