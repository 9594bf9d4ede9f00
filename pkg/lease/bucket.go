package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// venue is where an election is held; the real one is [natsServer].
type venue interface {
	// open opens the bucket and makes sure that it exists.
	open(ctx context.Context) (keyValue, error)
	// adjust gives the bucket another length of leases.
	adjust(ctx context.Context, ttl time.Duration) error
	// listen calls told whenever somebody gave the key back, as far as the
	// network delivers.
	listen(told func()) (stop func())
}

// keyValue is what an elector needs of its bucket.
type keyValue interface {
	Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error)
	Create(ctx context.Context, key string, value []byte, opts ...jetstream.KVCreateOpt) (uint64, error)
	Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error)
	// PurgeAt removes the key if its revision is the given one.
	PurgeAt(ctx context.Context, key string, revision uint64) error
	Status(ctx context.Context) (jetstream.KeyValueStatus, error)
}

// natsBucket is a JetStream bucket as a [keyValue].
type natsBucket struct{ jetstream.KeyValue }

func (b natsBucket) PurgeAt(ctx context.Context, key string, revision uint64) error {
	return b.Purge(ctx, key, jetstream.LastRevision(revision))
}

// natsServer holds elections in a JetStream bucket.
type natsServer struct {
	js          jetstream.JetStream
	bucket, key string
	ttl         time.Duration // of a bucket that has to be made
}

// copies is how many servers of a cluster keep the bucket, so that one of them may
// be lost.
const copies = 3

func (s natsServer) open(ctx context.Context) (keyValue, error) {
	kv, err := s.js.KeyValue(ctx, s.bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = s.create(ctx)
	}
	if err != nil {
		return nil, err
	}
	if s.clustered() {
		_ = s.change(ctx, func(c *jetstream.StreamConfig) { c.Replicas = max(c.Replicas, copies) }) // as it is, if there is no room
	}
	return natsBucket{kv}, nil
}

func (s natsServer) clustered() bool { return s.js.Conn().ConnectedClusterName() != "" }

func (s natsServer) create(ctx context.Context) (jetstream.KeyValue, error) {
	config := jetstream.KeyValueConfig{
		Bucket:      s.bucket,
		Description: "who leads what; a key lapses when it is not renewed",
		TTL:         s.ttl, // of the bucket: a key's own is gone with the first update
		Storage:     jetstream.FileStorage,
	}
	if s.clustered() {
		config.Replicas = copies
	}
	kv, err := s.js.CreateKeyValue(ctx, config)
	if apiError := (*jetstream.APIError)(nil); errors.As(err, &apiError) && (apiError.ErrorCode == noPeers || apiError.ErrorCode == notClustered) {
		config.Replicas = 1
		kv, err = s.js.CreateKeyValue(ctx, config)
	}
	if errors.Is(err, jetstream.ErrBucketExists) {
		return s.js.KeyValue(ctx, s.bucket) // another elector was quicker
	}
	return kv, err
}

// What a server answers that cannot keep so many copies.
const (
	noPeers      jetstream.ErrorCode = 10005
	notClustered jetstream.ErrorCode = 10074
)

func (s natsServer) adjust(ctx context.Context, ttl time.Duration) error {
	return s.change(ctx, func(c *jetstream.StreamConfig) {
		c.MaxAge = ttl
		c.Duplicates = min(c.Duplicates, ttl) // the server wants it no longer
	})
}

// change changes the configuration of the bucket's stream, if it is not so yet.
func (s natsServer) change(ctx context.Context, how func(*jetstream.StreamConfig)) error {
	stream, err := s.js.Stream(ctx, "KV_"+s.bucket)
	if err != nil {
		return err
	}
	config := stream.CachedInfo().Config
	age, replicas := config.MaxAge, config.Replicas
	if how(&config); config.MaxAge == age && config.Replicas == replicas {
		return nil
	}
	_, err = s.js.UpdateStream(ctx, config)
	return err
}

// listen is a plain subscription to the bucket's own subject. It survives a
// restart of the server by itself, where a watch of the bucket takes seconds to
// recover. A key that lapses makes no message, and a lost message costs one
// look of the candidates.
func (s natsServer) listen(told func()) (stop func()) {
	sub, err := s.js.Conn().Subscribe("$KV."+s.bucket+"."+s.key, func(m *nats.Msg) {
		if m.Header.Get("KV-Operation") != "" { // else it is a renewal
			told()
		}
	})
	if err != nil { // the connection is closed for good
		return func() {}
	}
	return func() { _ = sub.Unsubscribe() }
}

// record is the value of an election's key.
type record struct {
	Holder  string `json:"holder"`
	Session string `json:"session"` // of the elector that wrote it
	Attempt uint64 `json:"attempt"` // of its writes
}

// held is the key as it was read.
type held struct {
	record
	revision uint64
}

// open opens the bucket. One without a length for its keys would never let go
// of a dead leader's, so it gets one.
func (e *Elector) open(ctx context.Context) error {
	if e.bucket != nil {
		return nil
	}
	bucket, err := e.venue.open(ctx)
	if err != nil {
		return err
	}
	status, err := bucket.Status(ctx)
	if err != nil {
		return err
	}
	if status.TTL() == 0 {
		if err := e.venue.adjust(ctx, e.opts.TTL); err != nil {
			return err
		}
	}
	e.bucket = bucket
	return nil
}

// settle returns the timing of a lease that was just won. The bucket decides
// when a key lapses, so a lease is never taken for longer than the bucket's
// length. The winner then gives the bucket its own; only a winner may, because
// the others hold nothing that a shorter length could cut off.
func (e *Elector) settle(ctx context.Context) (timing, error) {
	status, err := e.bucket.Status(ctx)
	if err != nil {
		return timing{}, err
	}
	ttl := status.TTL()
	if ttl != e.opts.TTL {
		if err := e.venue.adjust(ctx, e.opts.TTL); err != nil {
			e.opts.Log.Warn().Err(err).Dur("bucket_ttl", ttl).Msg("the length of leases in the bucket cannot be changed")
		}
	}
	if ttl = min(ttl, e.opts.TTL); ttl < MinTTL {
		return timing{}, fmt.Errorf("leases in bucket %s last %s, less than %s", e.opts.Bucket, ttl, MinTTL)
	}
	return timingOf(ttl), nil
}

// read reads the key; nil when nobody holds it.
func (e *Elector) read(ctx context.Context) (*held, error) {
	entry, err := e.bucket.Get(ctx, e.opts.Key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	h := &held{revision: entry.Revision()}
	if err := json.Unmarshal(entry.Value(), &h.record); err != nil {
		h.Holder = "unknown" // somebody's, not ours: it lapses
	}
	return h, nil
}

// write writes the key under the elector's name, if its revision is still the
// given one (0: nobody holds it). It returns the start of the write, what the
// key is now, and whether that is this write. An error means that nothing is
// known.
//
// When the server refused or the connection broke, the key is read back, for
// the refusal may be due to an earlier write of our own. When it did not answer
// in time there is no point in waiting for it once more: the next write will
// find out what became of this one.
func (e *Elector) write(ctx context.Context, revision uint64, call time.Duration) (started time.Time, now *held, ok bool, err error) {
	e.attempt++
	mine := record{Holder: e.opts.Holder, Session: e.session, Attempt: e.attempt}
	value, err := json.Marshal(mine)
	if err != nil {
		return started, nil, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, call)
	defer cancel()
	started = time.Now()
	if revision == 0 {
		revision, err = e.bucket.Create(ctx, e.opts.Key, value)
	} else {
		revision, err = e.bucket.Update(ctx, e.opts.Key, value, revision)
	}
	if err == nil {
		return started, &held{mine, revision}, true, nil
	}
	now, unread := e.read(ctx)
	if unread != nil {
		return started, nil, false, err
	}
	return started, now, now != nil && now.record == mine, nil
}

// release gives the key back, if it is still as the hold has it. It is not
// worth more than one call: what is not given back lapses.
func (e *Elector) release(ctx context.Context, h *hold) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.timing.call)
	defer cancel()
	revision := h.revision
	if now, err := e.read(ctx); err == nil {
		if now == nil || now.Session != e.session {
			return
		}
		revision = now.revision // a write of ours may have come through unseen
	}
	if err := e.bucket.PurgeAt(ctx, e.opts.Key, revision); err != nil {
		e.opts.Log.Debug().Err(err).Msg("the lease could not be given back; it will lapse")
	}
}
