"""Architecture fields of popular models, by Hugging Face id (``models.json``)."""
