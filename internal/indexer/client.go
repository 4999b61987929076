package indexer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tallygate/tallygate/internal/problem"
)

// DefaultServer is where an indexer's query API is unless configured otherwise.
const DefaultServer = "http://127.0.0.1:8090"

// client asks an indexer's query API.
type client struct {
	server string // URL without a slash at its end
	bearer string // read token; "" sends none
	http   *http.Client
}

func newClient(server string) (*client, error) {
	u, err := url.Parse(server)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("--server: %q is no URL such as %s", server, DefaultServer)
	}
	return &client{server: strings.TrimRight(server, "/"), http: &http.Client{Timeout: 30 * time.Second}}, nil
}

// maxAnswer is the longest answer that is read, in bytes.
const maxAnswer = 64 << 20

// get returns the body of the answer to GET /v1/<elements…>?query, which must be JSON.
func (c *client) get(ctx context.Context, query url.Values, elements ...string) ([]byte, error) {
	address := c.server + "/v1"
	for _, e := range elements {
		address += "/" + url.PathEscape(e)
	}
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	if c.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // the URL would repeat a token, which may be a secret
		}
		return nil, fmt.Errorf("no answer from the indexer at %s; is it running, and is --server right? %w", c.server, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the indexer's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		var p problem.Details
		if json.Unmarshal(body, &p) == nil && p.Detail != "" {
			return nil, errors.New(p.Detail)
		}
		return nil, fmt.Errorf("the server at %s answered %s; is it an indexer?", c.server, resp.Status)
	}
	return body, nil
}
