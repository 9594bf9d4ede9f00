package sqlite

import (
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// space is a namespace's row with its usage. An id of 0 says that it has no
// row: it was never used.
type space struct {
	id          int64
	name        string
	stamp       store.Stamp
	hasDocument bool
	bucket      quota.Bucket
	pending     int64
	running     int64

	relabelling  bool   // its jobs are being moved between lanes,
	relabelledTo string // and those up to this id have theirs
}

const selectSpace = `SELECT n.id, n.quota_revision, n.has_document, n.rate_count, n.rate_unit, n.level, n.level_at, u.pending, u.running,
	n.relabelling, n.relabelled_to FROM namespaces n INDEXED BY namespaces_name JOIN usage u ON u.ns = n.id WHERE n.name = ?`

// space reads a namespace.
func (t *tx) space(name string) (*space, error) {
	sp := &space{name: name}
	_, err := t.one(selectSpace, func(r *row) {
		sp.id, sp.stamp.Revision, sp.hasDocument = r.int(), r.int(), r.bool()
		sp.bucket = quota.Bucket{Rate: quota.Rate{Count: r.int(), Unit: quota.Unit(r.int())}, Level: r.int(), At: r.int()}
		sp.pending, sp.running = r.int(), r.int()
		sp.relabelling, sp.relabelledTo = r.bool(), r.text()
	}, name)
	if err != nil || sp.hasDocument {
		return sp, err
	}
	sp.stamp.Default, err = t.defaultRevision()
	return sp, err
}

// defaultRevision reads the revision of the default quota, once a transaction.
func (t *tx) defaultRevision() (int64, error) {
	if t.defaultStamp == nil {
		n, err := t.number("SELECT default_revision FROM installation")
		if err != nil {
			return 0, err
		}
		t.defaultStamp = &n
	}
	return *t.defaultStamp, nil
}

// create gives a namespace its row, if it has none.
func (t *tx) create(sp *space) error {
	if sp.id != 0 {
		return nil
	}
	if err := t.exec("INSERT INTO namespaces (name) VALUES (?)", sp.name); err != nil {
		return err
	}
	sp.id = t.LastInsertRowID()
	return nil
}

// saveBucket stores the token bucket.
func (t *tx) saveBucket(sp *space, b quota.Bucket) error {
	sp.bucket = b
	return t.exec("UPDATE namespaces SET rate_count = ?, rate_unit = ?, level = ?, level_at = ? WHERE id = ?",
		b.Rate.Count, int64(b.Rate.Unit), b.Level, b.At, sp.id)
}
