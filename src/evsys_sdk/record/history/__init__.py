"""What the record says about all experiments: found, summarised, filtered, compared, condensed. Reads files only."""
