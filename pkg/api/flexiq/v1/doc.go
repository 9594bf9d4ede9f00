// Package flexiqv1 is FlexiQ's interface: the messages of its three services as protobuf defines
// them, and the code generated from that.
//
// The .proto files beside this one are the source, and the reference of every method and field:
// producer.proto is spoken by those who enqueue, worker.proto by those who run jobs,
// admin.proto by those who operate. One set of messages serves NATS, gRPC and HTTP alike, as
// protobuf or as JSON.
//
// Names and numbers of fields are relied on from outside: fields are added, never renamed,
// renumbered or reused. A field that is absent means "not set", never zero; where zero or empty is
// a value of its own the field has presence, a pointer in Go.
//
// The .pb.go files are written by `make gen`. There are no generated stubs: servers and clients
// bind methods through the service descriptors.
package flexiqv1
