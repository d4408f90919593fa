"""What touches disk, network and terminal, runs in the background, or uses private parts of
torch.
"""
