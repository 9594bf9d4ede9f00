// Package store is the contract of storage: what a backend keeps and promises,
// in prose and small interfaces. The backends are its sub-packages; storetest
// is the suite that each of them passes.
//
// # What every operation promises
//
// Each operation is atomic: all of it happened or nothing did, also when the
// process is killed inside it. What it answered as done is durable. Each has a
// deadline of its own below the context's, and gives back STORAGE_UNAVAILABLE
// (see package fault) when the database cannot be reached, is full or too slow.
// Any other error is a bug and INTERNAL. Operations are safe for concurrent
// use, in one process and in many.
//
// The clock is the store's: a database server's own, or the host's for an
// embedded one. Times have microsecond precision. Namespaces, queues and keys
// are compared byte for byte. Ids and keys are unique per namespace, never
// across. An object of another namespace is simply not there.
//
// Counts are kept by the database itself in the step that changes the rows, so
// they cannot drift and a limit is compared with the truth. Every step that
// writes jobs locks its namespaces in byte order first.
//
// # Group operations
//
// Admit and Turn take many units of many namespaces in one call, because a
// commit's cost is shared that way. Units are decided in the order given.
// They do not affect each other: one unit's error or refusal is its own
// outcome, and a failure of the database that only one unit provokes is that
// unit's error alone.
package store

import (
	"context"
	"errors"
	"strconv"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/quota"
)

// ErrStale is a unit's outcome when the caller decided by a quota that is no
// longer in force. Nothing was written; load the quota again and repeat.
var ErrStale = errors.New("the quota changed: load it again")

// Store is everything a backend does.
type Store interface {
	Admission
	Dispatch
	Jobs
	Letters
	Insight
	Quotas
	Settings
	Overrides
	Tokens
	Schedules
	Triggers
	Trail
	Retention
	Upkeep
}

// Admission makes pending jobs.
type Admission interface {
	// Admit decides enqueue calls by package admit's rules and writes what was
	// admitted or shed. It is the only operation that makes a pending job out
	// of nothing; [Letters.Replay], which makes one out of a dead letter,
	// decides by the same rules. Outcomes are in the order of the calls; the error
	// is of the database as a whole and then nothing was written.
	Admit(ctx context.Context, calls []Call) ([]Outcome, error)

	// Cancel ends pending jobs as cancelled and marks running ones so that
	// their next heartbeat says it. It examines at most limit jobs of a filter
	// selection, oldest id first; More then tells that some may be left. A job
	// that is already marked is not counted again by a filter.
	Cancel(ctx context.Context, ns string, sel Selection, limit int) (Cancelled, error)
}

// Stamp names the quota that a caller decides by. A store compares it with
// what is in force and answers ErrStale when they differ.
type Stamp struct {
	Revision int64 // of the namespace's own document, 0 before the first; clear raises it too
	Default  int64 // of the installation's default quota when the namespace has no document, else 0
}

// InForce is the revision that refusals show.
func (s Stamp) InForce() int64 { return max(s.Revision, s.Default) }

// Call is one enqueue call, one unit. Its jobs have passed [job.Spec.Normalize]
// and their ids differ.
type Call struct {
	Namespace string
	Quota     quota.Quota // in force as far as the caller knows
	Stamp     Stamp       // of Quota
	Jobs      []job.Spec  // 1…1000
	Origin    string      // see [job.Job]
	By        string      // token id
	Slot      *Slot       // of a schedule that this call fires, else nil
}

// Outcome is what became of a call.
type Outcome struct {
	Err     error    // a refusal (*fault.Error), ErrStale, ErrSlot, or nil
	Results []Result // one per job of the call, in order, when Err is nil
	Shed    bool     // the jobs are dead letters
	Repeat  bool     // the call was seen before; nothing was written
}

// Result is one enqueued job.
type Result struct {
	// Job is the job that now stands for the call's, without its payload: its
	// own, or the holder of its unique or debounce key. Nil when a repeated
	// call's duplicate has no holder any more.
	Job          *job.Job
	Deduplicated bool // a live job already had the unique key
	Debounced    bool // a pending job already had the debounce key; it was updated
}

// Selection picks jobs of one namespace: the ids, or else everything that
// matches the filter.
type Selection struct {
	IDs    []string
	Filter Filter
}

// Filter narrows jobs down. Zero fields match everything.
type Filter struct {
	State         job.State
	Queue         string
	Task          string
	CreatedBefore time.Time
	DiedBefore    time.Time // dead letters only
	Shed          *bool     // dead letters only
}

// Cancelled counts what Cancel did.
type Cancelled struct {
	Cancelled  int64 // ended now
	Cancelling int64 // running; their workers will be told
	NotFound   int64 // ids that are not live
	More       bool
}

// Dispatch hands out jobs and takes them back.
type Dispatch interface {
	// Turn first applies settlements, then serves wants, in one step.
	//
	// A settlement is accepted when it shows the job's current lease and the
	// lease has not been taken away; [job.Job.After] says where the job goes.
	// The same settlement twice is accepted twice and acts once. Anything else
	// is refused without effect.
	//
	// A want gets up to Max jobs of its queues, in the order priority (highest
	// first), run_at, id, that are due now, as many as the least room of its
	// caps allows: the number of running jobs of the namespace never passes
	// MaxRunning through it, nor that of a queue or task the MaxConcurrent of its
	// override, and nothing of what is paused starts. What one cap holds back never
	// keeps others from running. A granted job is running, its attempt counted, its
	// lease set. The payloads of one grant are at most MaxBytes together, but
	// one job is given whatever its size. No work is an empty grant.
	Turn(ctx context.Context, settlements []Settlement, wants []Want) ([]Settled, []Grant, error)

	// Heartbeat extends leases to now + Extend, never beyond the attempt's
	// timeout and never to earlier than they were. A lease that is not current
	// is Lost.
	Heartbeat(ctx context.Context, beats []Beat) ([]Pulse, error)

	// Expire ends at most limit attempts whose lease has ended, oldest first:
	// as timed out when the attempt's timeout is reached, else as lost. It
	// returns what it ended; fewer than limit means none is left.
	Expire(ctx context.Context, limit int) ([]Ended, error)

	// Ready tells which of the interests have a job that is due now, and when
	// the next one will be. It writes nothing and looks at no caps.
	Ready(ctx context.Context, interests []Interest) ([]Readiness, error)
}

// Want asks for jobs of one namespace.
type Want struct {
	Namespace  string
	Queues     []string // empty: all
	Max        int      // 1…1000
	MaxBytes   int64    // 0: no bound
	LeaseFor   time.Duration
	Worker     string
	MaxRunning *int64 // of the quota in force as far as the caller knows; nil is unlimited
	Stamp      Stamp
}

// Grant answers a want.
type Grant struct {
	Err  error // ErrStale, what the database refused of this want alone, or nil
	Jobs []Leased
	// Held names what kept due jobs of the queues back, each once, by What and
	// Name: what is paused or at its cap now, and MaxRunning where nothing else
	// did. It is set when fewer than Max were given and MaxBytes did not stop it.
	Held []Hold
	// NextAt is when the next job of the queues becomes due that no pause and no
	// cap of a queue or task holds, zero when none waits for its time. It is set
	// when Jobs is empty.
	NextAt time.Time
}

// Leased is a running job and the lease on it.
type Leased struct {
	Job       job.Job
	Lease     string // unguessable, new for each claim
	ExpiresAt time.Time
}

// Settlement ends an attempt. The error text is cleaned by the store's use of
// [job.Job.After]; the result is at most [job.MaxResult] bytes.
type Settlement struct {
	Namespace  string
	JobID      string
	Lease      string
	Outcome    job.Outcome
	Error      string
	Result     []byte
	RetryAfter *time.Duration
}

// Settled answers a settlement.
type Settled struct {
	Err      error     // the database refused this settlement alone; try again. Else nil
	Accepted bool      // false: the lease is not current
	Repeat   bool      // accepted before
	State    job.State // of the job now; empty when it does not exist
	Queue    string    // of the job, for wake-ups
	Task     string
	Attempt  int32
}

// Beat is one heartbeat.
type Beat struct {
	Namespace string
	JobID     string
	Lease     string
	Extend    time.Duration
}

// Pulse answers a heartbeat.
type Pulse struct {
	Err       error // the database refused this beat alone; try again. Else nil
	Alive     bool  // false: lost
	Cancelled bool  // alive, and its cancellation was requested
	ExpiresAt time.Time
}

// Ended is an attempt that Expire ended.
type Ended struct {
	Namespace string
	Queue     string
	JobID     string
	State     job.State // pending, dead or cancelled
}

// Interest is what somebody waits for.
type Interest struct {
	Namespace string
	Queues    []string // empty: all
}

// Readiness answers an interest.
type Readiness struct {
	Ready  bool
	NextAt time.Time // the next run_at in the future, zero when there is none
}

// Jobs reads jobs.
type Jobs interface {
	// Job finds a job of any state, with payload and result. A missing one is NOT_FOUND.
	Job(ctx context.Context, ns, id string) (*job.Job, error)

	// ListJobs lists jobs by id upwards, those after the given id, without
	// payloads and results. It examines a bounded number of rows: a page may
	// be short, even empty, while Next is set. A job that exists throughout is
	// listed once, however others move.
	ListJobs(ctx context.Context, ns string, f Filter, after string, limit int) (Page[job.Job], error)

	// Usage reads the counts of namespaces, in order. A namespace that was
	// never used has zero counts.
	Usage(ctx context.Context, namespaces []string) ([]Usage, error)

	// Namespaces lists the names of namespaces, in byte order after the given
	// one: all that ever had a job or a quota.
	Namespaces(ctx context.Context, after string, limit int) (Page[string], error)
}

// LettersLimit is how many dead letters one call of [Letters] takes.
const LettersLimit = 1000

// Letters takes dead letters away, by their ids. A job that is not dead is as
// missing as one that does not exist.
type Letters interface {
	// Replay moves dead letters back to pending, each as a new job, and each a
	// unit that moves whole or stays as it is. They are decided in order by
	// package admit's rules as calls of one job that can only be refused: what is
	// over a limit stays and is never shed. So does one whose unique key a live
	// job holds, or whose debounce key a pending job does. One that stays spends
	// nothing. Payload and options are kept, attempts begin anew, and it is due
	// at once. When any moves, the audit record is written in the same step.
	Replay(ctx context.Context, r Replay) ([]Replayed, error)

	// DeleteDead deletes dead letters with their payloads and tells how many it
	// found. When it finds any, the audit record is written in the same step.
	DeleteDead(ctx context.Context, ns string, ids []string, audit Record) (int64, error)

	// Retryable lists the ids of dead letters that were not shed, died before an
	// instant and were retried automatically fewer than most times: the oldest
	// first, by (finished time, id), those after an earlier page's Next. It
	// examines a bounded number of rows: a page may be short, even empty, while
	// Next is set.
	Retryable(ctx context.Context, q Retryable) (Page[string], error)
}

// Replay asks for dead letters of one namespace to be moved.
type Replay struct {
	Namespace string
	Quota     quota.Quota // in force as far as the caller knows
	Stamp     Stamp       // of Quota
	Letters   []Letter    // 1…LettersLimit, each id once
	By        string      // token id; empty: the automatic retry
	Automatic bool        // counts in [job.Job.AutoRetries]
	Audit     *Record     // the store fills in outcome and new value; nil: none
}

// Counted is a record of something that was done to n objects.
func (r Record) Counted(what string, n int64) *Record {
	r.Outcome, r.New = "ok", `{"`+what+`":`+strconv.FormatInt(n, 10)+`}`
	return &r
}

// Letter is a dead letter and the id of the job that it becomes, which no job has.
type Letter struct{ ID, As string }

// Replayed is what became of one dead letter: it moved, was gone, or stays.
type Replayed struct {
	Job  *job.Job // the new job without its payload, when it moved
	Gone bool     // there is no dead letter of this id
	// Err is why it stays: QUEUE_FULL, RATE_LIMITED, UNIQUE_KEY_HELD or
	// DEBOUNCE_KEY_HELD, ErrStale, or what the database refused of it alone.
	Err error
}

// Retryable asks for dead letters that may be retried automatically.
type Retryable struct {
	Namespace string
	Before    time.Time // they died before
	Most      int32     // they were retried fewer times, 1…255
	After     string    // Next of the page before, empty for the first
	Limit     int
}

// Page is one page of a listing. Next is where the following one starts, empty
// at the end.
type Page[T any] struct {
	Items []T
	Next  string
}

// Usage is what a namespace holds.
type Usage struct {
	Namespace string
	Pending   int64
	Running   int64
	Archived  int64
	Dead      int64 // shed ones included
	Shed      int64
	Bucket    quota.Bucket // as last written
	Stamp     Stamp
	Now       time.Time // the store's clock at the reading
}

// Quotas keeps quota documents.
type Quotas interface {
	// Quotas reads the quotas in force for namespaces, in order.
	Quotas(ctx context.Context, namespaces []string) ([]Document, error)

	// DefaultQuota reads the installation's default quota; an absent one has a
	// nil Raw.
	DefaultQuota(ctx context.Context) (Document, error)

	// PutQuota replaces or clears one document, raises its revision, adjusts the
	// bucket to a new rate and writes the audit record, in one step. It
	// returns the document as it now is. With IfRevision it first compares: 0
	// wants no document to exist, anything else the last revision, also that of
	// a cleared document. A mismatch changes nothing, writes the record as
	// refused, and returns the present document with REVISION_MISMATCH.
	PutQuota(ctx context.Context, c QuotaChange) (Document, error)

	// Changes tells what was written to quotas, overrides and tokens after the change
	// number since, oldest first, each object once, whoever wrote it; Latest is
	// the number to continue from.
	Changes(ctx context.Context, since int64, limit int) (Changes, error)
}

// Document is a stored quota document.
type Document struct {
	Raw       []byte // as stored; nil when there is none
	Stamp     Stamp
	Inherited bool // Raw is the installation's default quota
	UpdatedAt time.Time
	UpdatedBy string
}

// QuotaChange replaces or clears one document.
type QuotaChange struct {
	Namespace  string // ignored with Default
	Default    bool   // the installation's default quota instead
	Raw        []byte // nil clears
	Rate       *quota.Rate
	IfRevision *int64
	Audit      Record // old, new, outcome and revision are filled in by the store
}

// Kind of a changed object.
type Kind string

// The kinds of [Change].
const (
	KindQuota        Kind = "quota"         // Key is the namespace
	KindDefaultQuota Kind = "default_quota" // Key is empty
	KindToken        Kind = "token"         // Key is the token id
	KindOverride     Kind = "override"      // Key is the namespace
)

// Change names a changed object.
type Change struct {
	Kind Kind
	Key  string
}

// Changes is what was changed after a change number.
type Changes struct {
	Items  []Change
	Latest int64
}

// Settings keeps what operators store for a namespace under keys of their own.
// The caller has checked the keys by [CheckSettingKey]; a reserved one cannot be
// spelled, so it is not found, and no listing shows it.
type Settings interface {
	// Setting reads one; NOT_FOUND.
	Setting(ctx context.Context, ns, key string) (Setting, error)
	// PutSetting writes one and the audit record, in one step, and returns it as
	// it now is. Its revision is one more than before, 1 at first.
	PutSetting(ctx context.Context, s Setting, audit Record) (Setting, error)
	// DeleteSetting removes one and writes the audit record, in one step; NOT_FOUND.
	DeleteSetting(ctx context.Context, ns, key string, audit Record) error
	// ListSettings lists a namespace's settings by key, with their values.
	ListSettings(ctx context.Context, ns, after string, limit int) (Page[Setting], error)
}

// Setting is one stored value.
type Setting struct {
	Namespace string
	Key       string
	Value     string // at most [MaxSetting] bytes
	Revision  int64
	UpdatedAt time.Time
	UpdatedBy string // token id, of the audit record
}

// Bounds of a setting.
const (
	MaxSetting    = 16 << 10
	MaxSettingKey = 200
)

// CheckSettingKey reports whether key is one that settings may have:
// [a-z0-9][a-z0-9._/-]{0,199}. No such key has a colon or a capital letter in
// it, so it is never that of a quota or of anything else that is reserved.
func CheckSettingKey(key string) bool {
	if key == "" || len(key) > MaxSettingKey {
		return false
	}
	for i := range len(key) {
		b := key[i]
		plain := b >= 'a' && b <= 'z' || b >= '0' && b <= '9'
		if !plain && (i == 0 || b != '.' && b != '_' && b != '/' && b != '-') {
			return false
		}
	}
	return true
}

// PurgeTokens is how many expired tokens one PutToken deletes at most, and
// PurgeAfter how long they have been expired by then.
const (
	PurgeTokens = 100
	PurgeAfter  = time.Hour
)

// Tokens keeps tokens. None of it sees a secret, only its SHA-256.
type Tokens interface {
	// Bootstrap stores the first tokens of an installation. It does nothing and
	// returns false when any token was ever stored.
	Bootstrap(ctx context.Context, tokens []Token) (bool, error)
	// PutToken stores a new token and its audit record. With a token that
	// another was exchanged for it also deletes the namespace's tokens of that
	// kind that expired more than an hour ago, up to [PurgeTokens] of them, with
	// their changes: they would pile up otherwise.
	PutToken(ctx context.Context, t Token, audit Record) error
	// Token finds a token by id, revoked and expired ones included; NOT_FOUND.
	Token(ctx context.Context, id string) (*Token, error)
	// ListTokens lists a namespace's tokens by id; the namespace "" has the platform tokens.
	ListTokens(ctx context.Context, ns, after string, limit int) (Page[Token], error)
	// RevokeToken ends a token of the namespace and writes the audit record;
	// NOT_FOUND. Revoking twice changes nothing and is no error.
	RevokeToken(ctx context.Context, ns, id string, audit Record) error
	// TouchTokens records when tokens were last used; unknown ids are ignored.
	TouchTokens(ctx context.Context, used map[string]time.Time) error
}

// Token is a stored token.
type Token struct {
	ID        string
	Namespace string // empty: a platform token
	Scopes    []string
	Name      string
	Hash      [32]byte // SHA-256 of the secret
	CreatedAt time.Time
	CreatedBy string // token id
	ActingAs  string // the platform token that exchanged itself for this one
	ExpiresAt time.Time
	RevokedAt time.Time // zero: not revoked
	LastUsed  time.Time // zero: never
}

// Trail keeps the audit trail.
type Trail interface {
	// Audit writes a record on its own, of a write that was refused.
	Audit(ctx context.Context, r Record) error
	// ListAudit lists a namespace's records, oldest first.
	ListAudit(ctx context.Context, ns string, f AuditFilter, after string, limit int) (Page[Record], error)
}

// Record is one line of the audit trail.
type Record struct {
	Time       time.Time // set by the store
	Namespace  string    // whose trail; empty: the installation's
	TokenID    string
	ActingAs   string // the namespace a platform token acts for, else empty
	Door       string // nats, http, grpc
	Operation  string
	TargetKind string
	Target     string
	Outcome    string // ok, or the reason of the refusal
	Old        string // JSON, empty: none
	New        string
	Revision   int64
}

// AuditFilter narrows the trail down. Zero fields match everything.
type AuditFilter struct {
	Kind  string
	Since time.Time
}

// Retention deletes history.
type Retention interface {
	// NewTerm issues a leader's term, higher than any before. Every Trim with a
	// lower term does nothing from then on.
	NewTerm(ctx context.Context, holder string) (int64, error)
	// Trim deletes at most Limit of the oldest rows of one table of one
	// namespace, by (finished time, id): those beyond Keep, or those finished
	// before Before. It never deletes a row among the newest Keep. An old term is
	// refused with Superseded and deletes nothing. With a stamp that is not in
	// force it is ErrStale.
	Trim(ctx context.Context, t Trim) (Trimmed, error)
	// TrimAudit deletes at most limit audit records older than before, under a term.
	TrimAudit(ctx context.Context, term int64, before time.Time, limit int) (Trimmed, error)
}

// Table is a table of history.
type Table string

// The tables of history.
const (
	Archive     Table = "archive"
	DeadLetters Table = "dead_letters"
)

// Trim asks for one batch of deletes. Exactly one of Keep and Before is set.
type Trim struct {
	Term      int64
	Namespace string
	Table     Table
	Keep      *int64
	Before    time.Time
	Limit     int    // 1…500
	Stamp     *Stamp // of the quota that Keep comes from; nil for age windows
}

// Trimmed tells what a batch deleted.
type Trimmed struct {
	Superseded bool // the term is not the newest; nothing was deleted
	Completed  int64
	Cancelled  int64
	Dead       int64
	Shed       int64
	Audit      int64
	More       bool // rows are left that another batch would delete
}

// Upkeep is for health and repair.
type Upkeep interface {
	// Ping checks that the store answers and can write.
	Ping(ctx context.Context) error
	// Recount counts the rows of a namespace, ignoring kept counts.
	Recount(ctx context.Context, ns string) (Usage, error)
	// Examine tells what is kept about the jobs of a namespace and is not so:
	// counts, lanes, indexes, payloads without a job. Jobs themselves are
	// believed. It finds nothing in a sound store, however busy, and so in one
	// that was never used. With repair it also makes it so, under the locks of
	// every other writer, and returns what it found then; all of it is mended but
	// what is [Broken]. It deletes no job. It reads every job of the namespace,
	// which may take minutes: its deadline is long.
	Examine(ctx context.Context, ns string, repair bool) ([]Finding, error)
	// EraseNamespace deletes at most limit rows of a namespace, and reports
	// whether more is left: its tokens first, then what makes jobs, jobs, history,
	// settings, quota and audit trail. When nothing is left the namespace is as if it had never
	// been used, its revisions included. It may be repeated at any time, so that
	// what a crash interrupted is taken up again. Whoever erases first revokes the
	// tokens and waits until no process believes them.
	EraseNamespace(ctx context.Context, ns string, limit int) (more bool, err error)
	// Close releases everything. No operation may follow or be running.
	Close() error
}
