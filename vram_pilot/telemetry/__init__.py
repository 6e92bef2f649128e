"""The instruments: what is read of the device, the allocator and the process."""
