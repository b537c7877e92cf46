"""Language models made of the layers, run from the weights of a Hugging Face state dict: `from npattn.models import hybrid`."""
