package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tallygate/tallygate/internal/quota"
)

// Enforcer asks one or more enforcers over HTTP, in turn. It is safe for
// concurrent use.
type Enforcer struct {
	urls    []*url.URL
	client  *http.Transport
	timeout time.Duration
	next    atomic.Uint64
	buffers sync.Pool // of *bytes.Buffer
}

// NewEnforcer returns a decider over the enforcers at the given addresses, for
// example http://127.0.0.1:8080. Up to connections of them are kept open, and a
// request without an answer after timeout is given up as unknown.
func NewEnforcer(targets []string, connections int, timeout time.Duration) (*Enforcer, error) {
	e := &Enforcer{timeout: timeout, buffers: sync.Pool{New: func() any { return new(bytes.Buffer) }}}
	for _, target := range targets {
		u, err := url.Parse(target)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return nil, fmt.Errorf("target %q is no enforcer's address: use for example http://127.0.0.1:8080", target)
		}
		u.Path = strings.TrimSuffix(u.Path, "/") + "/v1/decide"
		e.urls = append(e.urls, u)
	}
	if len(e.urls) == 0 {
		return nil, errors.New("no target: name an enforcer, for example http://127.0.0.1:8080")
	}
	e.client = &http.Transport{
		Proxy:               nil, // the enforcer is meant, not somebody on the way
		DialContext:         (&net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second}).DialContext,
		MaxIdleConns:        0,
		MaxIdleConnsPerHost: connections,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
		ForceAttemptHTTP2:   true,
	}
	return e, nil
}

// Close closes the connections.
func (e *Enforcer) Close() { e.client.CloseIdleConnections() }

var requestHeader = http.Header{"Content-Type": {"application/json"}, "User-Agent": {"tallygate-load"}}

// maxBody bounds what is read of an answer.
const maxBody = 64 << 10

// Decide implements Decider. The transport sends a request a second time only when
// none of it was written, so that it is never counted twice.
func (e *Enforcer) Decide(ctx context.Context, r Request) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	body := appendRequest(make([]byte, 0, 128), r)
	req := (&http.Request{
		Method: http.MethodPost, URL: e.urls[e.next.Add(1)%uint64(len(e.urls))],
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: requestHeader, ContentLength: int64(len(body)),
		Body:    io.NopCloser(bytes.NewReader(body)),
		GetBody: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil },
	}).WithContext(ctx)
	resp, err := e.client.RoundTrip(req)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return Answer{}, fmt.Errorf("%w: %w", ErrNotCounted, err)
		}
		return Answer{}, fmt.Errorf("decide: %w", withoutPorts(err))
	}
	defer resp.Body.Close()
	buf := e.buffers.Get().(*bytes.Buffer)
	defer e.buffers.Put(buf)
	buf.Reset()
	if _, err := buf.ReadFrom(io.LimitReader(resp.Body, maxBody)); err != nil {
		return Answer{}, fmt.Errorf("decide: read the answer: %w", withoutPorts(err))
	}
	return parseAnswer(resp.StatusCode, buf.Bytes())
}

// parseAnswer reads an answer: 200 and 429 are decisions, any other 4xx says that
// the request was refused before it was counted, and the rest says nothing certain.
func parseAnswer(status int, body []byte) (Answer, error) {
	var a struct {
		Outcome quota.Outcome `json:"outcome"`
		At      int64         `json:"at_ms"`
		Title   string        `json:"title"`
		Detail  string        `json:"detail"`
	}
	err := json.Unmarshal(body, &a)
	switch {
	case err == nil && status == http.StatusOK && a.Outcome == quota.Admitted,
		err == nil && status == http.StatusTooManyRequests && a.Outcome == quota.Rejected:
		return Answer{Outcome: a.Outcome, At: a.At}, nil
	case status >= 400 && status < 500 && status != http.StatusTooManyRequests:
		return Answer{}, fmt.Errorf("%w: HTTP %d: %s %s", ErrNotCounted, status, a.Title, a.Detail)
	case status >= 500:
		return Answer{}, fmt.Errorf("HTTP %d: %s %s", status, a.Title, a.Detail)
	}
	return Answer{}, fmt.Errorf("HTTP %d with an answer that is no decision", status)
}

// withoutPorts replaces a network error by its cause: its own text names the local
// port, which makes every one of a thousand like errors look different.
func withoutPorts(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}

func appendRequest(b []byte, r Request) []byte {
	b = appendString(append(b, `{"token":`...), r.Token)
	if r.Resource != "" {
		b = appendString(append(b, `,"resource":`...), r.Resource)
	}
	b = strconv.AppendInt(append(b, `,"cost":`...), r.Cost, 10)
	if r.Policy != "" {
		b = appendString(append(b, `,"policy":`...), r.Policy)
	}
	return append(b, '}')
}

// appendString appends s as JSON.
func appendString(b []byte, s string) []byte {
	if strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c >= 0x7f || c == '"' || c == '\\' }) {
		quoted, _ := json.Marshal(s) // a string always has a JSON form
		return append(b, quoted...)
	}
	return append(append(append(b, '"'), s...), '"')
}
