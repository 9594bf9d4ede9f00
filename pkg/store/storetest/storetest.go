// Package storetest is the conformance suite of package store: what every
// backend promises, as tests. A backend's own tests are one call of [Run], one
// of [Main], and whatever is peculiar to its database.
//
// Each case starts with an empty store and runs in parallel with the others.
// Values are compared exactly, which a frozen [Clock] makes possible. After
// each case the kept counts of every namespace are compared with a recount.
//
// The suite is tested itself: the reference store of package model passes it,
// and deliberately wrong variants of that store are each caught by the case
// that is meant to catch them.
package storetest

import (
	"context"
	"testing"
	"time"

	"flexiq/pkg/store"
)

// Backend is what the suite needs to know of a backend.
type Backend struct {
	// Create makes a fresh empty store, removed with the test, and returns
	// what Open needs to find it, also from another process: a file, a schema,
	// a key prefix.
	Create func(t testing.TB) (address string)

	// Open opens one more handle on a store. A nil now leaves the store its own
	// clock; otherwise now is the store's clock and may go backwards. The suite
	// closes the handle.
	Open func(ctx context.Context, address string, now func() time.Time) (store.Store, error)

	// InProcess says that other processes cannot open the store, which leaves
	// out the cases that start some.
	InProcess bool

	// Scribble overwrites the stored quota document of a namespace past the
	// door, as an operator with a database shell would.
	Scribble func(t testing.TB, address, namespace string, raw []byte)

	// Remains names what the database still holds of a namespace that was erased,
	// found past the door. Nil where there is nothing to look at.
	Remains func(t testing.TB, address, namespace string) []string

	// Drifts are ways to make what is kept of a namespace's jobs wrong past the
	// door, by name. Each works on a namespace that has pending, running,
	// archived, dead and shed jobs, some with long payloads and keys, and takes
	// nothing from a job.
	Drifts map[string]func(t testing.TB, address, namespace string)

	// Poison makes the database itself refuse to insert jobs of the given task,
	// until heal is called. Nil where the database takes all of a namespace's
	// calls in one step, and so cannot refuse one alone: such a backend tests
	// itself that what is refused of a namespace costs nothing.
	Poison func(t testing.TB, address, task string) (heal func())
}

// Run runs the suite on a backend.
func Run(t *testing.T, b Backend) {
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(start(t, b))
				})
			}
		})
	}
}

// group is the cases of one subject.
type group struct {
	name  string
	cases []testcase
}

// testcase is one promise of the contract.
type testcase struct {
	name string
	run  func(*fixture)
}

var groups = []group{
	{"Admit", admitCases},
	{"Rate", bucketCases},
	{"Repeat", repeatCases},
	{"Shed", shedCases},
	{"Keys", keyCases},
	{"Claim", claimCases},
	{"Override", overrideCases},
	{"Hold", holdCases},
	{"Insight", insightCases},
	{"Settle", settleCases},
	{"Lease", leaseCases},
	{"Cancel", cancelCases},
	{"Letters", letterCases},
	{"Trim", trimCases},
	{"Names", nameCases},
	{"Payloads", payloadCases},
	{"List", listCases},
	{"Quotas", quotaCases},
	{"Settings", settingCases},
	{"Tokens", tokenCases},
	{"Schedules", scheduleCases},
	{"Triggers", triggerCases},
	{"Trail", trailCases},
	{"Examine", examineCases},
	{"Erase", eraseCases},
	{"Crowd", crowdCases},
	{"Processes", processCases},
	{"Model", machineCases},
}
