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

	Plain    bool // may be published over NATS without a reply subject
	LongPoll bool // waits for something to happen
	Stream   bool // answers many messages; over NATS there is no request, and its events are subscribed to
}

// Procedure is the method's HTTP path.
func (m Method) Procedure() string { return "/" + m.Service + "/" + m.Name }

// Methods is the catalogue of every served method. It is not to be changed.
//
// GetQuota and the quota writes list platform because they reach the
// installation's default quota with `default: true`, and ListAudit because it
// reads the installation's own trail; their handlers refuse the rest.
var Methods = []Method{
	entry(ProducerService, "Enqueue", "enqueue", Produce).plain(),
	entry(ProducerService, "EnqueueBatch", "enqueue-batch", Produce).plain(),
	entry(ProducerService, "EnqueueCalls", "enqueue-calls", Produce),
	entry(ProducerService, "GetJob", "get-job", Produce, Inspect),
	entry(ProducerService, "ListJobs", "list-jobs", Produce, Inspect),
	entry(ProducerService, "CancelJobs", "cancel-jobs", Produce),

	entry(WorkerService, "Claim", "claim", Work).longPoll(),
	entry(WorkerService, "Heartbeat", "heartbeat", Work),
	entry(WorkerService, "Settle", "settle", Work),

	entry(AdminService, "GetQuota", "get-quota", Inspect, Platform),
	entry(AdminService, "SetQuota", "set-quota", Admin, Platform).plain(),
	entry(AdminService, "EditQuota", "edit-quota", Admin, Platform).plain(),
	entry(AdminService, "ClearQuota", "clear-quota", Admin, Platform).plain(),
	entry(AdminService, "GetUsage", "get-usage", Inspect),
	entry(AdminService, "ListQueues", "list-queues", Inspect),
	entry(AdminService, "ListWorkers", "list-workers", Inspect),
	entry(AdminService, "Explain", "explain", Inspect),
	entry(AdminService, "ListDeadLetters", "list-dead-letters", Inspect),
	entry(AdminService, "GetDeadLetter", "get-dead-letter", Inspect),
	entry(AdminService, "DeleteDeadLetters", "delete-dead-letters", Admin),
	entry(AdminService, "ReplayDeadLetters", "replay-dead-letters", Admin),
	entry(AdminService, "PutSchedule", "put-schedule", Admin),
	entry(AdminService, "DeleteSchedule", "delete-schedule", Admin),
	entry(AdminService, "PauseSchedule", "pause-schedule", Admin),
	entry(AdminService, "ResumeSchedule", "resume-schedule", Admin),
	entry(AdminService, "RunSchedule", "run-schedule", Admin),
	entry(AdminService, "ListSchedules", "list-schedules", Inspect),
	entry(AdminService, "PutTrigger", "put-trigger", Admin),
	entry(AdminService, "DeleteTrigger", "delete-trigger", Admin),
	entry(AdminService, "ListTriggers", "list-triggers", Inspect),
	entry(AdminService, "SetOverride", "set-override", Admin),
	entry(AdminService, "ClearOverride", "clear-override", Admin),
	entry(AdminService, "ListOverrides", "list-overrides", Inspect),
	entry(AdminService, "ListAudit", "list-audit", Inspect, Platform),
	entry(AdminService, "CreateToken", "create-token", Admin, Platform),
	entry(AdminService, "ListTokens", "list-tokens", Admin, Platform),
	entry(AdminService, "RevokeToken", "revoke-token", Admin, Platform),
	entry(AdminService, "ListNamespaces", "list-namespaces", Platform),
	entry(AdminService, "DeleteNamespace", "delete-namespace", Platform),
	entry(AdminService, "GetSetting", "get-setting", Inspect),
	entry(AdminService, "ListSettings", "list-settings", Inspect),
	entry(AdminService, "PutSetting", "put-setting", Admin),
	entry(AdminService, "DeleteSetting", "delete-setting", Admin),
	entry(AdminService, "ExchangeToken", "exchange-token", Platform),
	entry(AdminService, "WatchEvents", "watch-events", Inspect).stream(),
}

func entry(service, name, verb string, scopes ...Scope) Method {
	return Method{Service: service, Name: name, Verb: verb, Scopes: scopes}
}

func (m Method) plain() Method { m.Plain = true; return m }

func (m Method) longPoll() Method { m.LongPoll = true; return m }

func (m Method) stream() Method { m.Stream = true; return m }

// MethodNamed finds a method of the catalogue by its name.
func MethodNamed(name string) (Method, bool) {
	i := slices.IndexFunc(Methods, func(m Method) bool { return m.Name == name })
	if i < 0 {
		return Method{}, false
	}
	return Methods[i], true
}
