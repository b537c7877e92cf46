"""`python -m npattn bench`: how long the forms take here, how near that is to matrix products alone, and how others compare."""
