package main

import "time"

// rows are all there is to measure.
var rows = []row{
	{"B1", "single enqueue, PostgreSQL", 3 * time.Minute, true, rowB1},
	{"B2", "batches, PostgreSQL", 4 * time.Minute, false, rowB2},
	{"B4", "single enqueue, Redis", 6 * time.Minute, true, rowB4},
	{"B6", "single enqueue and drain, SQLite", 5 * time.Minute, true, rowB6},
}
