package wire

import (
	"maps"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/namespace"
)

// MetadataSlot is the metadata key that tells a schedule's job which slot it is
// of, as a time by RFC 3339.
const MetadataSlot = "flexiq.slot"

// longestSlot is as long as a slot's time may be written.
const longestSlot = "2006-01-02T15:04:05Z"

// EncodeTemplate checks the job of a schedule or a trigger and encodes it as
// stores keep it. It has no id and no run_at: each of its jobs has its own.
func EncodeTemplate(p *flexiqv1.JobSpec, maxPayload int) ([]byte, error) {
	switch {
	case p == nil:
		return nil, fault.Invalid("job", "must be given")
	case p.Id != "":
		return nil, fault.Invalid("job.id", "must not be given: each job gets its own")
	case p.RunAt != nil:
		return nil, fault.Invalid("job.run_at", "must not be given: the job runs when it is enqueued")
	}
	if _, err := slotSpec(proto.Clone(p).(*flexiqv1.JobSpec), longestSlot, maxPayload); err != nil {
		return nil, err
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		return nil, fault.Invalid("job", "cannot be encoded")
	}
	return raw, nil
}

// DecodeTemplate reads what [EncodeTemplate] wrote.
func DecodeTemplate(raw []byte) (*flexiqv1.JobSpec, error) {
	p := &flexiqv1.JobSpec{}
	if err := proto.Unmarshal(raw, p); err != nil {
		return nil, fault.Wrap(err, fault.Internal, "the stored job cannot be read")
	}
	return p, nil
}

// SlotSpec makes the job of a slot.
func SlotSpec(template []byte, slot time.Time, maxPayload int) (job.Spec, error) {
	p, err := DecodeTemplate(template)
	if err != nil {
		return job.Spec{}, err
	}
	return slotSpec(p, slot.UTC().Format(time.RFC3339), maxPayload)
}

func slotSpec(p *flexiqv1.JobSpec, slot string, maxPayload int) (job.Spec, error) {
	p.Metadata = maps.Clone(p.Metadata)
	if p.Metadata == nil {
		p.Metadata = make(map[string]string, 1)
	}
	p.Metadata[MetadataSlot] = slot
	return Spec("job", p, maxPayload)
}

// TriggerSpec makes the job of a request with a body. The body is the payload,
// unless the template has one.
func TriggerSpec(template []byte, id string, body []byte, maxPayload int) (job.Spec, error) {
	p, err := DecodeTemplate(template)
	if err != nil {
		return job.Spec{}, err
	}
	p.Id = id
	if p.Payload == nil && p.Args == nil {
		p.Payload = append([]byte{}, body...)
	}
	return Spec("job", p, maxPayload)
}

// TriggerPrefix is the HTTP path below which triggers are asked.
const TriggerPrefix = "/v1/triggers/"

// TriggerPath is the HTTP path of a trigger.
func TriggerPath(ns, name string) string {
	return TriggerPrefix + namespace.Encode(ns) + "/" + namespace.Encode(name)
}
