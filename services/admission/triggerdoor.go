package admission

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
)

// Headers of a request to a trigger.
const (
	headerSignature = "Fq-Signature" // t=<unix seconds>,v1=<hex HMAC-SHA256(secret, t + "." + body)>
	headerSecret    = "Fq-Secret"
)

// signatureWindow is how far a signature's time may be from ours.
const signatureWindow = 5 * time.Minute

// Attempts limits failures to authenticate by address.
type Attempts interface {
	Over(address string) bool
	Fail(address string)
}

var errSignature = fault.New(fault.Unauthenticated, "the signature is not valid")

// Triggers serves POST /v1/triggers/{namespace}/{name}, both escaped as in a
// subject. It needs no token: the request is signed, or shows the secret.
func (s *Service) Triggers(attempts Attempts) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), triggerTimeout)
		defer cancel()
		out, err := s.serveTrigger(ctx, w, r, attempts)
		if err != nil {
			writeFault(w, fault.Of(err))
			return
		}
		writeOutcome(w, out)
	})
}

func (s *Service) serveTrigger(ctx context.Context, w http.ResponseWriter, r *http.Request, attempts Attempts) (store.Outcome, error) {
	if attempts.Over(r.RemoteAddr) {
		return store.Outcome{}, errSignature
	}
	ns, err := namespace.Decode(r.PathValue("namespace"))
	if err != nil {
		return store.Outcome{}, fault.Missing("trigger")
	}
	name, err := namespace.Decode(r.PathValue("name"))
	if err != nil {
		return store.Outcome{}, fault.Missing("trigger")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(s.cfg.MaxPayload)))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		return store.Outcome{}, fault.New(fault.PayloadTooLarge, "the body must be at most %d bytes", s.cfg.MaxPayload)
	case err != nil:
		return store.Outcome{}, fault.Invalid("body", "could not be read")
	}
	t, err := s.triggers.get(ctx, triggerKey{ns, name})
	if err == nil && t.Secret == nil {
		err = fault.Missing("trigger")
	}
	if err != nil {
		if fault.Is(err, fault.NotFound) {
			attempts.Fail(r.RemoteAddr) // names are not to be guessed
		}
		return store.Outcome{}, err
	}
	text := r.Header.Get(headerSignature)
	if text == "" {
		return s.pullBySecret(ctx, t, r, body, attempts)
	}
	at, mac, ok := parseSignature(text)
	if !ok || !fresh(at, time.Now()) || !hmac.Equal(mac[:], sign(t.Secret, at, body)) {
		attempts.Fail(r.RemoteAddr)
		return store.Outcome{}, errSignature
	}
	return s.pullOnce(ctx, t, at, mac, body)
}

func (s *Service) pullBySecret(ctx context.Context, t *store.Trigger, r *http.Request, body []byte, attempts Attempts) (store.Outcome, error) {
	shown := sha256.Sum256([]byte(r.Header.Get(headerSecret)))
	if want := sha256.Sum256(t.Secret); subtle.ConstantTimeCompare(shown[:], want[:]) == 0 {
		attempts.Fail(r.RemoteAddr)
		return store.Outcome{}, errSignature
	}
	id, err := uuid.NewV7()
	if err != nil {
		return store.Outcome{}, fault.Wrap(err, fault.Internal, "no random numbers for a job id")
	}
	return s.pull(ctx, t, id.String(), body, nil)
}

// pullOnce fires a trigger for a signature that was not used before. The step
// that writes the job uses it up; one whose request came to nothing, for whatever
// reason, may be used again.
func (s *Service) pullOnce(ctx context.Context, t *store.Trigger, at int64, mac [32]byte, body []byte) (store.Outcome, error) {
	id := derivedID(time.Unix(at, 0), "signature", t.Namespace, t.Name, string(mac[:]))
	out, err := s.pull(ctx, t, id, body, &store.Signature{
		Sum:   sha256.Sum256(append([]byte(t.Name+"\x00"), mac[:]...)),
		Until: time.Unix(at, 0).Add(2 * signatureWindow),
	})
	if errors.Is(err, store.ErrSignature) || err == nil && out.Repeat {
		return store.Outcome{}, fault.New(fault.Unauthenticated, "the signature was used before")
	}
	return out, err
}

// parseSignature reads t=<unix seconds>,v1=<hex>, in either order.
func parseSignature(text string) (at int64, mac [32]byte, ok bool) {
	var stamp, sum bool
	for _, part := range strings.Split(text, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case key == "t" && !stamp:
			var err error
			at, err = strconv.ParseInt(value, 10, 64)
			stamp = err == nil && strconv.FormatInt(at, 10) == value
		case key == "v1" && !sum && len(value) == 2*len(mac):
			_, err := hex.Decode(mac[:], []byte(value))
			sum = err == nil
		default:
			return 0, mac, false
		}
	}
	return at, mac, stamp && sum
}

// sign is the signature of a body at a time.
func sign(secret []byte, at int64, body []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write(strconv.AppendInt(nil, at, 10))
	h.Write([]byte{'.'})
	h.Write(body)
	return h.Sum(nil)
}

func fresh(at int64, now time.Time) bool {
	window := int64(signatureWindow / time.Second)
	return at >= now.Unix()-window && at <= now.Unix()+window
}

func binarySequence(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// triggered is the body of an accepted request.
type triggered struct {
	IDs    []string `json:"ids"`
	Status string   `json:"status"`
}

func writeOutcome(w http.ResponseWriter, out store.Outcome) {
	var t triggered
	for _, r := range out.Results {
		if r.Job != nil {
			t.IDs, t.Status = append(t.IDs, r.Job.ID), string(r.Job.State)
		}
	}
	writeJSON(w, http.StatusAccepted, t)
}

// triggerStatus is what the caller of a trigger sees of a failure.
func triggerStatus(f *fault.Error) int {
	switch f.Reason {
	case fault.PayloadTooLarge:
		return http.StatusRequestEntityTooLarge
	case fault.QuotaUnreadable, fault.DeadlineExceeded, fault.Cancelled:
		return http.StatusServiceUnavailable
	}
	return f.Reason.Status()
}

func writeFault(w http.ResponseWriter, f *fault.Error) {
	w.Header().Set(rpc.HeaderReason, string(f.Reason))
	if after, ok := f.RetryAfter(); ok {
		w.Header().Set(rpc.HeaderRetryAfter, strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
	}
	writeJSON(w, triggerStatus(f), map[string]any{"error": map[string]any{
		"code": string(f.Reason.Code()), "reason": string(f.Reason), "message": f.Message, "details": f.Details,
	}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller may be gone
}
