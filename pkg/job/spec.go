package job

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
)

// Normalize checks a spec as a caller sent it, fills in the defaults and the
// id, and sets the fingerprint. The error names the field, below the given
// prefix ("job" or "jobs[3]"). maxPayload is in bytes. A zero MaxAttempts,
// Timeout or backoff means its default; the doors refuse an explicit zero.
func (s *Spec) Normalize(prefix string, maxPayload int) error {
	s.RunAt, s.Delay = micro(s.RunAt), s.Delay.Truncate(time.Microsecond)
	given := s.fingerprint()
	if s.Queue == "" {
		s.Queue = DefaultQueue
	}
	if s.MaxAttempts == 0 {
		s.MaxAttempts, s.Open = DefaultMaxAttempts, s.Open|OptionMaxAttempts
	}
	if s.Timeout == 0 {
		s.Timeout, s.Open = DefaultTimeout, s.Open|OptionTimeout
	}
	if s.BackoffBase == 0 {
		s.BackoffBase = min(DefaultBackoffBase, positive(s.BackoffMax, DefaultBackoffBase))
	}
	if s.BackoffMax == 0 {
		s.BackoffMax = max(DefaultBackoffMax, s.BackoffBase)
	}
	if s.Debounce.Key != "" && s.Debounce.MaxWait == 0 {
		s.Debounce.MaxWait = 10 * s.Debounce.Window
	}
	for _, d := range []*time.Duration{&s.Timeout, &s.BackoffBase, &s.BackoffMax, &s.Debounce.Window, &s.Debounce.MaxWait} {
		*d = d.Truncate(time.Microsecond)
	}
	if err := s.check(prefix, maxPayload); err != nil {
		return err
	}
	if s.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return fault.Wrap(err, fault.Internal, "no random numbers for a job id")
		}
		s.ID = id.String()
	} else {
		s.ID = strings.ToLower(s.ID)
	}
	s.Fingerprint = given
	return nil
}

func positive(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

// micro rounds to the precision of the stores.
func micro(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC().Truncate(time.Microsecond)
}

func (s *Spec) check(prefix string, maxPayload int) error {
	at := func(field string) string { return prefix + "." + field }
	if s.ID != "" {
		if err := CheckID(at("id"), s.ID); err != nil {
			return err
		}
	}
	names := []struct{ field, value string }{{"queue", s.Queue}, {"task", s.Task}}
	if s.UniqueKey != "" {
		names = append(names, struct{ field, value string }{"unique_key", s.UniqueKey})
	}
	if s.Debounce != (Debounce{}) {
		names = append(names, struct{ field, value string }{"debounce.key", s.Debounce.Key})
	}
	for _, n := range names {
		if err := namespace.Check(n.value); err != nil {
			return fault.Invalid(at(n.field), "%v", err)
		}
	}
	if len(s.Payload) > maxPayload {
		field := "payload"
		if s.Form == Args {
			field = "args"
		}
		return fault.New(fault.PayloadTooLarge, "%s: must be at most %d bytes, got %d", at(field), maxPayload, len(s.Payload)).
			With(fault.KeyField, at(field))
	}
	if err := checkPriority(at("priority"), s.Priority); err != nil {
		return err
	}
	if err := checkMaxAttempts(at("max_attempts"), s.MaxAttempts); err != nil {
		return err
	}
	if err := checkTimeout(at("timeout"), s.Timeout); err != nil {
		return err
	}
	switch {
	case !s.RunAt.IsZero() && s.Delay != 0:
		return fault.Invalid(at("delay"), "must not be given together with run_at")
	case s.Delay < 0 || s.Delay > MaxDelay:
		return fault.Invalid(at("delay"), "must be from 0s to %s, got %s", MaxDelay, s.Delay)
	case !s.RunAt.IsZero() && (s.RunAt.Year() < 1970 || s.RunAt.Year() > 9999):
		return fault.Invalid(at("run_at"), "must be a time from 1970 to 9999, got year %d", s.RunAt.Year())
	case s.BackoffBase < time.Millisecond || s.BackoffBase > MaxDelay:
		return fault.Invalid(at("backoff.base"), "must be from 1ms to %s, got %s", MaxDelay, s.BackoffBase)
	case s.BackoffMax < s.BackoffBase || s.BackoffMax > MaxDelay:
		return fault.Invalid(at("backoff.max"), "must be from base to %s, got %s", MaxDelay, s.BackoffMax)
	}
	if err := s.checkDebounce(at); err != nil {
		return err
	}
	return checkMetadata(at("metadata"), s.Metadata)
}

func (s *Spec) checkDebounce(at func(string) string) error {
	d := s.Debounce
	switch {
	case d == Debounce{}:
		return nil
	case s.UniqueKey != "":
		return fault.Invalid(at("debounce"), "must not be given together with unique_key")
	case s.Delay != 0 || !s.RunAt.IsZero():
		return fault.Invalid(at("debounce"), "must not be given together with delay or run_at")
	case d.Window < time.Millisecond || d.Window > MaxDelay:
		return fault.Invalid(at("debounce.window"), "must be from 1ms to %s, got %s", MaxDelay, d.Window)
	case d.MaxWait < d.Window || d.MaxWait > 10*MaxDelay:
		return fault.Invalid(at("debounce.max_wait"), "must be at least the window %s, got %s", d.Window, d.MaxWait)
	}
	return nil
}

// CheckID refuses what is not a UUIDv7, of the variant of RFC 9562, in its usual
// 36 characters.
func CheckID(field, id string) error {
	if u, err := uuid.Parse(id); err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 || len(id) != 36 {
		return fault.Invalid(field, "must be a UUIDv7 such as 01890a5d-ac96-774b-bcce-b302099a8057")
	}
	return nil
}

func checkMetadata(field string, m map[string]string) error {
	size := 0
	for k, v := range m {
		size += len(k) + len(v)
		switch {
		case k == "":
			return fault.Invalid(field, "a key must not be empty")
		case !utf8.ValidString(k) || !utf8.ValidString(v):
			return fault.Invalid(field, "keys and values must be valid UTF-8")
		case strings.ContainsRune(k, 0) || strings.ContainsRune(v, 0):
			return fault.Invalid(field, "keys and values must not contain NUL")
		}
	}
	if size > MaxMetadata {
		return fault.Invalid(field, "must be at most %d bytes in all, got %d", MaxMetadata, size)
	}
	return nil
}

// fingerprint hashes every option but the id. It runs on the spec as sent, so
// that a delay, which counts from the store's clock, repeats as the same delay.
func (s *Spec) fingerprint() [16]byte {
	h := sha256.New()
	text(h, s.Queue, s.Task, string(s.Payload), s.UniqueKey, s.Debounce.Key)
	run := int64(0)
	if !s.RunAt.IsZero() {
		run = s.RunAt.UnixMicro()
	}
	number(h, int64(s.Form), int64(s.Priority), run, int64(s.Delay), int64(s.MaxAttempts), int64(s.Timeout),
		int64(s.BackoffBase), int64(s.BackoffMax), int64(s.Debounce.Window), int64(s.Debounce.MaxWait), int64(len(s.Metadata)))
	for _, k := range slices.Sorted(maps.Keys(s.Metadata)) {
		text(h, k, s.Metadata[k])
	}
	return [16]byte(h.Sum(nil)[:16])
}

// text and number write values with their lengths, so that no two lists of
// values meet.
func text(h hash.Hash, values ...string) {
	for _, v := range values {
		number(h, int64(len(v)))
		h.Write([]byte(v))
	}
}

func number(h hash.Hash, values ...int64) {
	var b [8]byte
	for _, v := range values {
		binary.LittleEndian.PutUint64(b[:], uint64(v))
		h.Write(b[:])
	}
}
