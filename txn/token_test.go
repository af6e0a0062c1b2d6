package txn

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

func someToken() Token {
	return Token{
		TransactionalID: "orders-1", ProducerID: 4711, ProducerEpoch: 3, ClusterID: "AAECAwQFBgcICQoLDA0ODw", Dialect: "draft",
		GroupIDs: []string{"billing", "shipping"},
		Created:  time.Date(2026, 11, 29, 3, 0, 0, 5e6, time.UTC), Deadline: time.Date(2026, 11, 29, 3, 1, 0, 0, time.UTC),
	}
}

func TestTokenForms(t *testing.T) {
	for name, change := range map[string]func(*Token){
		"all there is":     func(*Token) {},
		"two-phase commit": func(t *Token) { t.Deadline = time.Time{} },
		"a quiet cluster":  func(t *Token) { t.ClusterID = "" },
		"records alone":    func(t *Token) { t.GroupIDs, t.Dialect = nil, "" },
		"names that hurt":  func(t *Token) { t.TransactionalID, t.GroupIDs = "a \"b\"\n\u00e9", []string{"", "{"} },
		"the largest numbers": func(t *Token) {
			t.ProducerID, t.ProducerEpoch = 1<<63-1, 1<<15-1
		},
		"before 1970": func(t *Token) { t.Created = time.Unix(-1, 0).UTC() },
	} {
		t.Run(name, func(t *testing.T) {
			want := someToken()
			change(&want)
			js, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			for _, form := range []string{want.String(), string(js), " " + want.String() + "\n"} {
				got, err := ParseToken(form)
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("ParseToken(%s) = %+v, %v; want %+v", form, got, err, want)
				}
			}
		})
	}
}

// Both forms are kept by others, in files and databases: they do not change.
func TestTokenIsStable(t *testing.T) {
	const short = "ktx1.CG9yZGVycy0x5yQDFkFBRUNBd1FGQmdjSUNRb0xEQTBPRHcFZHJhZnQCB2JpbGxpbmcIc2hpcHBpbmeKjvbTxGgAwLf908Ro7WGsHQ"
	const long = `{"version":1,"transactional_id":"orders-1","producer_id":4711,"producer_epoch":3,"cluster_id":"AAECAwQFBgcICQoLDA0ODw","dialect":"draft","group_ids":["billing","shipping"],"created":"2026-11-29T03:00:00.005Z","deadline":"2026-11-29T03:01:00Z"}`
	js, err := json.Marshal(someToken())
	if err != nil || string(js) != long {
		t.Errorf("JSON form %s, %v; want %s", js, err, long)
	}
	if got := someToken().String(); got != short {
		t.Errorf("short form %s, want %s", got, short)
	}
}

func TestParseTokenRefuses(t *testing.T) {
	good := someToken().String()
	js, err := json.Marshal(someToken())
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ in, reason string }{
		"nothing":                {"", "is empty"},
		"blanks":                 {" \n", "is empty"},
		"something else":         {"orders-1", "does not begin"},
		"another version":        {"ktx2." + good[5:], "does not begin"},
		"the end is missing":     {good[:len(good)-3], "damaged"},
		"one letter is wrong":    {good[:20] + "x" + good[21:], "damaged"},
		"a letter too many":      {good + "A", "damaged"},
		"no base64":              {"ktx1.!", "damaged"},
		"only the prefix":        {"ktx1.", "damaged"},
		"JSON of another sort":   {"{}", "version 0"},
		"JSON of a version":      {strings.Replace(string(js), `"version":1`, `"version":2`, 1), "version 2"},
		"JSON without an ID":     {strings.Replace(string(js), "orders-1", "", 1), "no transactional ID"},
		"JSON without a number":  {strings.Replace(string(js), "4711", "-1", 1), "producer ID -1"},
		"JSON without a time":    {strings.Replace(string(js), `"created":"2026-11-29T03:00:00.005Z",`, "", 1), "when it was made"},
		"JSON cut off":           {string(js[:40]), "unexpected end"},
		"JSON with a wrong type": {strings.Replace(string(js), "4711", `"x"`, 1), "producer_id"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseToken(tt.in)
			if !isA[*TokenError](err) || !strings.Contains(err.Error(), tt.reason) {
				t.Errorf("ParseToken(%q) = %+v, %v; want a *TokenError with %q", tt.in, got, err, tt.reason)
			}
		})
	}
	if s := (Token{}).String(); s != "" {
		t.Errorf("the short form of no token is %q", s)
	}
	if _, err := json.Marshal(Token{}); !isA[*TokenError](err) {
		t.Errorf("the JSON form of no token: %v, want a *TokenError", err)
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(someToken().String())
	js, err := json.Marshal(someToken())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(js))
	f.Fuzz(func(t *testing.T, in string) {
		token, err := ParseToken(in)
		if err != nil {
			if !isA[*TokenError](err) {
				t.Fatalf("ParseToken(%q): %v, want a *TokenError", in, err)
			}
			return
		}
		js, err := json.Marshal(token)
		if err != nil {
			t.Fatalf("ParseToken(%q) = %+v, which has no JSON form: %v", in, token, err)
		}
		for _, form := range []string{token.String(), string(js)} {
			again, err := ParseToken(form)
			if err != nil || !reflect.DeepEqual(again, token) {
				t.Fatalf("ParseToken(%q) = %+v, written as %s and read as %+v, %v", in, token, form, again, err)
			}
		}
	})
}
