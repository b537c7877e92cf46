"""`python -m npattn bench`: how long the forms take here, how near that is to what matrix products alone would take, and how others compare."""
