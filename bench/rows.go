package main

import "time"

// rows are all there is to measure.
var rows = []row{
	{"B1", "single enqueue, PostgreSQL", 3 * time.Minute, true, rowB1},
	{"B2", "batches, PostgreSQL", 4 * time.Minute, false, rowB2},
	{"B3", "drain, PostgreSQL", 5 * time.Minute, true, rowB3},
	{"B4", "single enqueue, Redis", 6 * time.Minute, true, rowB4},
	{"B5", "drain, Redis", 5 * time.Minute, false, rowB5},
	{"B6", "single enqueue and drain, SQLite", 5 * time.Minute, true, rowB6},
	{"B7", "a long history or backlog", 20 * time.Minute, false, rowB7},
	{"B7redis", "a long history or backlog, Redis", 10 * time.Minute, false, rowB7Redis},
	{"B8", "many namespaces, PostgreSQL", 8 * time.Minute, false, rowB8},
	{"B9", "limits and refusals, PostgreSQL", 5 * time.Minute, false, rowB9},
	{"B10", "latency, PostgreSQL", 5 * time.Minute, false, rowB10},
	{"B11", "a quiet tenant beside a busy one, PostgreSQL", 4 * time.Minute, false, rowB11},
	{"B12", "an idle system, SQLite", 3 * time.Minute, true, rowB12},
	{"B13", "closed loop, PostgreSQL", 8 * time.Minute, false, rowB13},
}
