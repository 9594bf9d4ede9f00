// Package redis keeps everything in Redis (7 or newer) or Valkey (8 or newer):
// one server or a cluster, for any number of processes on any number of hosts.
//
// A group operation is one script per namespace, sent in one pipeline. A script
// decides and writes in one step, by the server's clock, and keeps the indexes
// that the counts are read from. Package admit's rules and job.After's are
// written once more in Lua; the texts of refusals are not: a script answers the
// numbers, and package quota makes its verdict of them again.
//
// # Keys
//
// All keys of a namespace have one hash tag, its name as in subjects, so that
// they lie in one slot of a cluster: {acme}:settings, {acme}:j:<id>. What
// belongs to the installation has the tag {=}, which no name encodes to.
//
//	ns         the record: revision of the quota, bucket, term, …
//	settings   documents; the quota under namespace.QuotaKey
//	j:<id>     a job (see codec.go); b:<id> a long payload, r:<id> a result
//	live, archive, dead, shed   ids in their order, by what the job is
//	archived, died              ids by the time at which they finished
//	running    ids by the end of the lease; workers has who holds it
//	p:<queue><NUL><rank>        pending ids of a lane by run_at; with <task><NUL> before
//	                            the rank the lane of a task that an override holds
//	overrides                   by <kind>:<name>; counts has running jobs of each queue and task
//	lanes, f:<rank>, ranks      the lanes that are not empty (see jobs.lua)
//	unique, debounce            holders of keys
//	trail, trail:at, posted     the audit trail
//
// Run times are scores, which are exact to the microsecond until the year 2255.
// In Redis nothing is counted that is not in an index: pending is live without
// running.
//
// # What lies in several slots
//
// A step that a cluster cannot do in one script is written down first, where it
// is looked for, so that a process killed in the middle leaves nothing undone:
//
//   - A namespace is registered before its first write, and learns the default
//     quota's revision and the leader's term. Both are raised in every
//     registered namespace before the change of one, or the term, is answered.
//   - An erased namespace stays registered for ten minutes, and longer when it
//     registers again: a writer may have registered before and write only now.
//   - It is put among the busy ones before its first claim. Expire looks at
//     those, and once a minute at all.
//   - A change of a quota is announced to the feed of changes before it is made.
//   - The audit record of a token waits in an outbox, stored with the token,
//     until it is in its namespace's trail.
//
// # Durability
//
// An answer is as durable as the server's settings make it. With appendonly yes
// and appendfsync always it is on disk when it is given, as it is on the other
// backends: this is what the promise of package store needs. With appendfsync
// everysec (the server's default once appendonly is on) a crash of the host,
// not one of the server alone, loses up to about two seconds; limits and counts
// stay right, because the log is cut at one point. With appendonly no everything
// since the last snapshot is lost with the server; Open warns of that, and of a
// maxmemory-policy other than noeviction, which deletes jobs. Replicas are
// behind: a failover loses what was not yet copied, unless min-replicas-to-write
// bounds it.
//
// The package is longer than most, because it holds all of one backend; each
// file is one noun of package store.
package redis

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"flexiq/pkg/store"
)

const (
	defaultTimeout = 5 * time.Second
	defaultConns   = 16

	// formatNow is the layout of keys and values that this program writes.
	// Programs that know less than a store's oldest format must not use it.
	formatNow = 1
)

// Options of [Open]. The zero value is usable.
type Options struct {
	// Prefix begins every key, so that other programs, or another FlexiQ, can
	// use the same database. It must not contain braces.
	Prefix string
	// Now is the clock of tests; nil is the server's. It may step in either direction.
	Now func() time.Time
	// Log hears what no caller is told: a unit of a group that failed alone,
	// settings of the server that lose jobs. The zero value is silent.
	Log zerolog.Logger
	// Timeout bounds each operation below its context's deadline; 0 is 5 s.
	Timeout time.Duration
	// MaxConns bounds the connections to one server; 0 is 16.
	MaxConns int
	// NoMigrate forbids Open to make an empty database a store: it then fails
	// when it finds none.
	NoMigrate bool
}

// Store is an open store. It is safe for concurrent use.
type Store struct {
	db      redis.UniversalClient
	prefix  string
	now     func() time.Time // nil: the server's clock
	log     zerolog.Logger
	timeout time.Duration

	watch  watch
	survey survey

	closeOnce sync.Once
	closeErr  error
}

var _ store.Store = (*Store)(nil)

// Open opens the store at a URL: redis://, rediss:// (TLS), or redis+cluster://
// and rediss+cluster://. The first two find out by themselves that a server is
// one of a cluster. It fails when the server cannot be reached, or holds a store
// that only a newer program may use.
func Open(ctx context.Context, url string, o Options) (*Store, error) {
	if strings.ContainsAny(o.Prefix, "{}") {
		return nil, fmt.Errorf("redis: the prefix %q has a brace, which would change the keys' hash tag", o.Prefix)
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.MaxConns <= 0 {
		o.MaxConns = defaultConns
	}
	s := &Store{prefix: o.Prefix, now: o.Now, log: o.Log, timeout: o.Timeout}
	own, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	var err error
	if s.db, err = connect(own, url, o.MaxConns); err != nil {
		return nil, s.fail(ctx, "open", err)
	}
	if err := s.format(own, !o.NoMigrate); err != nil {
		_ = s.db.Close() // the format's error is the one to tell
		return nil, s.fail(ctx, "open", err)
	}
	s.warn(own)
	return s, nil
}

// format checks that this program may use what is in the database.
func (s *Store) format(ctx context.Context, create bool) error {
	first := 0
	if create {
		first = formatNow
	}
	found, oldest, err := s.readFormat(ctx, first)
	switch {
	case err != nil:
		return err
	case found == 0:
		return fmt.Errorf("redis: there is no store under the prefix %q", s.prefix)
	case oldest > formatNow:
		return fmt.Errorf("redis: the store has format %d, which only programs that know format %d may use", found, oldest)
	}
	return nil
}

// Close ends all connections. Closing twice is safe.
func (s *Store) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.db.Close() })
	return s.closeErr
}
