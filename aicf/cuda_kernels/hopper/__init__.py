"""What kernels for Hopper (sm_90) share, whatever they compute. Each module takes numbers and layouts, and knows no family of kernels.

entry, opening   how kernels and their blocks begin
shared_plan      what is where in shared memory
ring             stages that a producer fills and consumers empty
roles            registers of producers and consumers; consumers that take turns
scheduler        tiles of persistent blocks; stream_k divides some of them along k
cluster          blocks that begin together, share loads, or share tiles and exchange sums
copies, store    TMA: operands in, results out
mainloop         K-tile after K-tile by wgmma, of operands in shared memory or in registers; accumulators: where sums are kept
units            numbers of the hardware
"""
