package auth

import "slices"

// The protobuf services, as gRPC and HTTP name them.
const (
	ProducerService = "flexiq.v1.ProducerService"
	WorkerService   = "flexiq.v1.WorkerService"
	AdminService    = "flexiq.v1.AdminService"
)

// Method is one entry of the catalogue.
type Method struct {
	Service string  // full protobuf name of the service
	Name    string  // of the method; unique over the services
	Verb    string  // the name in kebab case, as it stands in NATS subjects
	Scopes  []Scope // any of them opens the method
	Plain   bool    // may be published without a reply subject
}

// Procedure is the method's HTTP path.
func (m Method) Procedure() string { return "/" + m.Service + "/" + m.Name }

// Methods is the catalogue of every served method. It is not to be changed.
//
// GetQuota and the quota writes list platform because they reach the
// installation's default quota with `default: true`; their handlers refuse the
// rest.
var Methods = []Method{
	{ProducerService, "Enqueue", "enqueue", []Scope{Produce}, true},
	{ProducerService, "EnqueueBatch", "enqueue-batch", []Scope{Produce}, true},
	{ProducerService, "EnqueueCalls", "enqueue-calls", []Scope{Produce}, false},
	{ProducerService, "GetJob", "get-job", []Scope{Produce, Inspect}, false},
	{ProducerService, "ListJobs", "list-jobs", []Scope{Produce, Inspect}, false},
	{ProducerService, "CancelJobs", "cancel-jobs", []Scope{Produce}, false},

	{WorkerService, "Claim", "claim", []Scope{Work}, false},
	{WorkerService, "Heartbeat", "heartbeat", []Scope{Work}, false},
	{WorkerService, "Settle", "settle", []Scope{Work}, false},

	{AdminService, "GetQuota", "get-quota", []Scope{Inspect, Platform}, false},
	{AdminService, "SetQuota", "set-quota", []Scope{Admin, Platform}, true},
	{AdminService, "EditQuota", "edit-quota", []Scope{Admin, Platform}, true},
	{AdminService, "ClearQuota", "clear-quota", []Scope{Admin, Platform}, true},
	{AdminService, "GetUsage", "get-usage", []Scope{Inspect}, false},
	{AdminService, "ListDeadLetters", "list-dead-letters", []Scope{Inspect}, false},
	{AdminService, "GetDeadLetter", "get-dead-letter", []Scope{Inspect}, false},
	{AdminService, "ListAudit", "list-audit", []Scope{Inspect}, false},
	{AdminService, "CreateToken", "create-token", []Scope{Admin, Platform}, false},
	{AdminService, "ListTokens", "list-tokens", []Scope{Admin, Platform}, false},
	{AdminService, "RevokeToken", "revoke-token", []Scope{Admin, Platform}, false},
	{AdminService, "ListNamespaces", "list-namespaces", []Scope{Platform}, false},
	{AdminService, "ExchangeToken", "exchange-token", []Scope{Platform}, false},
}

// MethodNamed finds a method of the catalogue by its name.
func MethodNamed(name string) (Method, bool) {
	i := slices.IndexFunc(Methods, func(m Method) bool { return m.Name == name })
	if i < 0 {
		return Method{}, false
	}
	return Methods[i], true
}
