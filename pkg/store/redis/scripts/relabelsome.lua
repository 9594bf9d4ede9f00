-- relabelsome: moves some jobs of a namespace between lanes. Answers 1 when some are left.

return relabel(RELABEL_BATCH) and 1 or 0
