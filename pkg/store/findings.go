package store

// Defect is a way in which what a store keeps about its jobs is wrong.
type Defect string

// The defects of a [Finding].
const (
	// Miscounted: a kept count is not that of the jobs. Kept and Counted are
	// the two values.
	Miscounted Defect = "miscounted"
	// Missing: Counted entries that jobs should have are not there.
	Missing Defect = "missing"
	// Stray: Kept entries belong to no job.
	Stray Defect = "stray"
	// Misplaced: Kept entries stand where their jobs no longer are.
	Misplaced Defect = "misplaced"
	// Broken: Counted jobs have lost a part of themselves, or are there twice.
	// No repair brings it back.
	Broken Defect = "broken"
)

// Finding is one thing that [Upkeep.Examine] found wrong. Where names the count,
// lane, table or index in the words of the backend, for people.
type Finding struct {
	Defect  Defect
	Where   string
	Kept    int64
	Counted int64
}
