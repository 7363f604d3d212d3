"""The Streamlit explorer."""
