package usage

import (
	"encoding/json"

	"github.com/tallygate/tallygate/internal/token"
)

// Event is something that happened to a token and is kept for good: a policy
// assigned, a block, a threshold crossed. Events are never changed, and an event
// that arrives again is recognised by its ID.
type Event struct {
	ID     string   // unique; chosen once by whoever makes the event
	Token  token.ID // "" when it is about no token
	At     int64    // unix ms
	Kind   string   // object.verb in the past tense, e.g. "policy.assigned"
	Actor  string   // who did it, e.g. the name of an admin credential
	Reason string
	Before json.RawMessage // the state before and after, as JSON; may be nil
	After  json.RawMessage
}
