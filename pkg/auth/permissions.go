package auth

import "flexiq/pkg/namespace"

// Prefixes of subjects.
const (
	RequestPrefix = "fq.v1."  // requests of tokens to services
	TriggerPrefix = "fqx.v1." // messages that fire triggers
	EventPrefix   = "fqe.v1." // events for tenants
	HintPrefix    = "fqi.v1." // between services; tenants get nothing here
	InboxPrefix   = "_INBOX."
)

// ServiceInbox is the inbox of our own services. No namespace encodes to its
// second token, so no tenant's inbox lies there.
const ServiceInbox = InboxPrefix + "=s"

// LeaseBucket is the KV bucket in which services elect leaders.
const LeaseBucket = "FQ_LEASE"

// NSToken is the identity's namespace as one token of a subject.
func (id Identity) NSToken() string {
	if id.Namespace == "" {
		return namespace.PlatformToken
	}
	return namespace.Encode(id.Namespace)
}

// Subject is where a token sends the requests of one verb.
func Subject(verb, nsToken, tokenID string) string {
	return RequestPrefix + verb + "." + nsToken + "." + tokenID
}

// TriggerSubject is where messages fire a trigger.
func TriggerSubject(ns, name string) string {
	return TriggerPrefix + namespace.Encode(ns) + "." + namespace.Encode(name)
}

// Inbox is the prefix, without a closing dot, below which a token receives replies.
func Inbox(nsToken, tokenID string) string {
	return InboxPrefix + nsToken + "." + tokenID
}

// Permissions are the NATS subjects that an identity may publish and subscribe
// to: allow lists, literal but for what is below the token's own prefixes.
// Whatever is not listed is forbidden.
func Permissions(id Identity) (publish, subscribe []string) {
	ns := id.NSToken()
	for _, m := range Methods {
		if id.Has(m.Scopes...) && !m.Stream {
			publish = append(publish, Subject(m.Verb, ns, id.TokenID))
		}
	}
	subscribe = []string{Inbox(ns, id.TokenID) + ".>"}
	if id.Namespace == "" {
		return publish, subscribe
	}
	if id.Has(Produce) {
		publish = append(publish, TriggerPrefix+ns+".>")
	}
	if id.Has(Inspect) {
		subscribe = append(subscribe, EventPrefix+ns+".>")
	}
	return publish, subscribe
}

// ServicePermissions are the NATS subjects that FlexiQ's own services may
// publish and subscribe to: answers to any inbox, hints, events, and the
// JetStream API with the lease bucket's subjects. Nothing of $SYS.
func ServicePermissions() (publish, subscribe []string) {
	publish = []string{
		InboxPrefix + ">",
		HintPrefix + ">",
		EventPrefix + ">",
		"$JS.API.>",
		"$JS.ACK.>", // of the messages of durable triggers
		"$KV." + LeaseBucket + ".>",
	}
	subscribe = []string{
		RequestPrefix + ">",
		TriggerPrefix + ">",
		HintPrefix + ">",
		EventPrefix + ">",
		ServiceInbox + ".>",
		"$KV." + LeaseBucket + ".>",
	}
	return publish, subscribe
}
