"""Files that a run leaves: the record of an image, JUnit and Markdown, crash reports."""
