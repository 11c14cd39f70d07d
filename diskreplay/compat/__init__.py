"""The APIs of older replay buffers, on the disk."""
