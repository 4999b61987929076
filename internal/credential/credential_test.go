package credential

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/config"
)

func TestOnlyAKnownAndUnexpiredTokenIsRecognised(t *testing.T) {
	reader, readerDigest := Generate()
	writer, writerDigest := Generate()
	s, err := New([]config.AdminCredential{
		{Name: "reader", SHA256: readerDigest, Role: "read", Expires: "2030-01-31T00:00:00Z"},
		{Name: "writer", SHA256: writerDigest, Role: "write"},
	})
	if err != nil {
		t.Fatal(err)
	}
	before, after := time.Date(2030, 1, 30, 23, 59, 59, 0, time.UTC), time.Date(2030, 1, 31, 0, 0, 0, 0, time.UTC)
	if c, err := s.Check(reader, before); err != nil || c != (Credential{"reader", Read}) {
		t.Errorf("reader: %v, %v", c, err)
	}
	if _, err := s.Check(reader, after); !errors.Is(err, ErrExpired) {
		t.Errorf("expired: %v", err)
	}
	if c, err := s.Check(writer, after); err != nil || c.Role != Write {
		t.Errorf("writer: %v, %v", c, err)
	}
	for _, token := range []string{"", "tg_", reader + "x", readerDigest} {
		if _, err := s.Check(token, before); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %v", token, err)
		}
	}
	if Read.Allows(Write) || !Write.Allows(Read) || !Read.Allows(Read) {
		t.Error("roles")
	}
}

func TestMalformedCredentialsAreRefused(t *testing.T) {
	_, digest := Generate()
	for _, c := range []config.AdminCredential{
		{SHA256: "abc"}, {SHA256: digest + "00"}, {SHA256: digest, Expires: "tomorrow"},
	} {
		if _, err := New([]config.AdminCredential{c}); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

func TestTheBearerTokenIsReadFromItsHeaderOnly(t *testing.T) {
	for header, want := range map[string]string{"Bearer abc": "abc", "bearer abc ": "abc", "Basic abc": "", "abc": "", "": ""} {
		r, _ := http.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", header)
		if got := Bearer(r); got != want {
			t.Errorf("%q: got %q", header, got)
		}
	}
}
