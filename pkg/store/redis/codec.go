package redis

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// A job's value, little endian. Scripts read and write it too: see jobs.lua.
//
//	 0  format, state, flags, outcome of the last settlement
//	 4  attempt            int32
//	 8  started_at         µs
//	16  lease, then the last settled one, 32 bytes each
//	80  run_at            µs; in a new job what was asked for
//	88  finished_at       µs
//	96  form, rank, automatic retries, one unused
//	100 max_attempts, size of the payload    int32
//	108 timeout, backoff base and max        µs
//	132 created_at        µs; in a new job the delay
//	140 debounce window and max_wait         µs
//	156 fingerprint
//	172 queue, task, unique key, debounce key with a byte of length each,
//	    origin, enqueued_by with two, metadata with four, error with two,
//	    and the payload, unless it is kept aside
const (
	headSize  = 172
	leaseSize = 32

	flagCancelling = 1
	flagShed       = 2
	flagAside      = 4
	flagLaned      = 8 // it stands in the lane of its task

	longestHead = 1195 // the last byte that head, names and texts up to the debounce key may reach

	// asideFrom is the size in bytes from which a payload is kept in a key of its
	// own, where it is not rewritten with its job.
	asideFrom = 2 << 10
)

// The states as stored.
const (
	statePending   = 0
	stateRunning   = 1
	stateComplete  = 2
	stateDead      = 3
	stateCancelled = 4
)

var states = [...]job.State{
	statePending: job.Pending, stateRunning: job.Running, stateComplete: job.Complete,
	stateDead: job.Dead, stateCancelled: job.Cancelled,
}

func stateOf(n int64) job.State {
	if n < 0 || n >= int64(len(states)) {
		return ""
	}
	return states[n]
}

func numberOf(s job.State) int {
	for n, v := range states {
		if v == s {
			return n
		}
	}
	return -1
}

// outcomes are numbered from 1 as they are stored.
var outcomes = map[job.Outcome]int{job.Completed: 1, job.Failed: 2, job.GivenUp: 3, job.Released: 4}

// encode writes the value of a new job, and its payload when it is kept aside.
func encode(sp *job.Spec, origin, by string) (value, aside []byte) {
	flags := byte(0)
	inline := sp.Payload
	if len(sp.Payload) >= asideFrom {
		flags, aside, inline = flagAside, sp.Payload, nil
	}
	metadata := object(sp.Metadata)
	size := headSize + 14 + len(sp.Queue) + len(sp.Task) + len(sp.UniqueKey) + len(sp.Debounce.Key) + len(origin) + len(by) + len(metadata) + len(inline)
	b := make([]byte, headSize, size)
	le := binary.LittleEndian
	b[0], b[2] = formatNow, flags
	le.PutUint64(b[80:], uint64(micros(sp.RunAt)))
	b[96], b[97] = byte(sp.Form), byte(job.MaxPriority-sp.Priority)
	le.PutUint32(b[100:], uint32(sp.MaxAttempts))
	le.PutUint32(b[104:], uint32(len(sp.Payload)))
	for i, d := range []time.Duration{sp.Timeout, sp.BackoffBase, sp.BackoffMax, sp.Delay, sp.Debounce.Window, sp.Debounce.MaxWait} {
		le.PutUint64(b[108+8*i:], uint64(d.Microseconds()))
	}
	copy(b[156:], sp.Fingerprint[:])
	for _, s := range []string{sp.Queue, sp.Task, sp.UniqueKey, sp.Debounce.Key} {
		b = append(append(b, byte(len(s))), s...)
	}
	for _, s := range []string{origin, by} {
		b = append(le.AppendUint16(b, uint16(len(s))), s...)
	}
	b = append(le.AppendUint32(b, uint32(len(metadata))), metadata...)
	b = le.AppendUint16(b, 0) // no error yet
	return append(b, inline...), aside
}

// decoded is a job as it is stored.
type decoded struct {
	job        job.Job // without payload, worker and result
	lease      string
	cancelling bool
	inline     string // the payload, if it was not cut off and is not kept aside
}

// payload is the job's payload, the other place being what a script read there.
func (d *decoded) payload(aside string) []byte {
	switch {
	case len(d.inline)+len(aside) > 0:
		return []byte(d.inline + aside)
	case d.job.Form == job.NoPayload:
		return nil
	}
	return []byte{}
}

// decode reads a value. It may have been cut after the names or before the payload.
func decode(ns, id, value string) (*decoded, error) {
	r := &reader{rest: value}
	head := r.bytes(headSize)
	if r.bad || head[0] == 0 {
		return nil, fmt.Errorf("redis: the value of job %s cannot be read", id)
	}
	le := binary.LittleEndian
	at := func(offset int) int64 { return int64(le.Uint64([]byte(head[offset : offset+8]))) }
	span := func(offset int) time.Duration { return time.Duration(at(offset)) * time.Microsecond }
	small := func(offset int) int32 { return int32(le.Uint32([]byte(head[offset : offset+4]))) }
	d := &decoded{lease: head[16:48], cancelling: head[2]&flagCancelling != 0}
	d.job = job.Job{
		ID: id, Namespace: ns, State: stateOf(int64(head[1])), Attempt: small(4), StartedAt: instant(at(8)),
		RunAt: instant(at(80)), FinishedAt: instant(at(88)), Form: job.Form(head[96]), Priority: job.MaxPriority - int32(head[97]), AutoRetries: int32(head[98]),
		MaxAttempts: small(100), Timeout: span(108), BackoffBase: span(116), BackoffMax: span(124), CreatedAt: instant(at(132)),
	}
	j := &d.job
	if j.State == job.Complete || j.State == job.Cancelled {
		j.AutoRetries = 0
	}
	j.Debounce.Window, j.Debounce.MaxWait = span(140), span(148)
	if head[2]&flagShed != 0 {
		j.DeadMetadata = job.ShedMetadata()
	}
	j.Queue, j.Task, j.UniqueKey, j.Debounce.Key = r.text(1), r.text(1), r.text(1), r.text(1)
	if r.bad {
		return nil, fmt.Errorf("redis: the value of job %s cannot be read", id)
	}
	j.Origin, j.EnqueuedBy = r.text(2), r.text(2)
	j.Metadata, j.Error = readObject(r.text(4)), r.text(2)
	d.inline = r.rest
	return d, nil
}

// reader takes a text apart.
type reader struct {
	rest string
	bad  bool // it was too short
}

func (r *reader) bytes(n int) string {
	if n < 0 || n > len(r.rest) {
		r.rest, r.bad = "", true
		return ""
	}
	s := r.rest[:n]
	r.rest = r.rest[n:]
	return s
}

func (r *reader) uint(size int) uint64 {
	var n uint64
	for i, c := range []byte(r.bytes(size)) {
		n |= uint64(c) << (8 * i)
	}
	return n
}

// text reads a text after its length of the given size.
func (r *reader) text(size int) string { return r.bytes(int(r.uint(size))) }

// object writes a map of strings, empty for none.
func object(m map[string]string) string {
	if len(m) == 0 {
		return ""
	}
	b, _ := json.Marshal(m) // a map of strings always marshals
	return string(b)
}

// readObject reads what object wrote. Anything else is shown as nothing, so that it
// cannot keep a job from running.
func readObject(s string) map[string]string {
	var m map[string]string
	if s == "" || json.Unmarshal([]byte(s), &m) != nil {
		return nil
	}
	return m
}

// record writes an audit record from its revision on.
func record(r *store.Record) string {
	return string(binary.LittleEndian.AppendUint64(nil, uint64(r.Revision))) + long(2, r.Outcome) + long(4, r.Old) + long(4, r.New) + fixed(r)
}

// fixed is the part of a record that a change does not make.
func fixed(r *store.Record) string {
	return long(4, r.TokenID) + long(4, r.ActingAs) + long(4, r.Door) + long(4, r.Operation) + long(4, r.TargetKind) + long(4, r.Target)
}

func long(size int, s string) string {
	b := make([]byte, size, size+len(s))
	for i := range b {
		b[i] = byte(len(s) >> (8 * i))
	}
	return string(append(b, s...))
}

// readRecord reads a record of a trail and its number.
func readRecord(ns, value string) (int64, store.Record, error) {
	r := &reader{rest: value}
	n, at := int64(r.uint(8)), int64(r.uint(8))
	rec := store.Record{Time: instant(at), Namespace: ns, Revision: int64(r.uint(8)), Outcome: r.text(2), Old: r.text(4), New: r.text(4),
		TokenID: r.text(4), ActingAs: r.text(4), Door: r.text(4), Operation: r.text(4), TargetKind: r.text(4), Target: r.text(4)}
	if r.bad {
		return 0, rec, fmt.Errorf("redis: a record of the trail cannot be read")
	}
	return n, rec, nil
}
