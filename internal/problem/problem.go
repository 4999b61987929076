// Package problem writes errors of HTTP APIs as application/problem+json (RFC 9457).
package problem

import (
	"encoding/json"
	"net/http"
)

// Details are the members that every problem has. Extend it by embedding.
type Details struct {
	Type   string `json:"type,omitempty"` // absent means about:blank
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"` // what is wrong and what to do, for a person
	Field  string `json:"field,omitempty"`  // the input that is wrong
}

// New returns the details of a plain problem: its title is that of the status.
func New(status int, field, detail string) Details {
	return Details{Title: http.StatusText(status), Status: status, Field: field, Detail: detail}
}

// Write answers with d.
func Write(w http.ResponseWriter, d Details) { WriteJSON(w, d.Status, d) }

// WriteJSON answers with a body that embeds Details.
func WriteJSON(w http.ResponseWriter, status int, body any) {
	content, err := json.Marshal(body)
	if err != nil {
		panic("problem: " + err.Error()) // bodies are plain structs
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(append(content, '\n')) // the client has gone if this fails
}
