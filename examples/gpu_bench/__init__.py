"""What `bench_gpu.py` is made of: a driver that needs no GPU library, and worker processes that each own one."""
