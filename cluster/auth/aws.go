package auth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/aws"
)

// AWS says where the credentials of AWS_MSK_IAM come from. They are, in this
// order: those of Profile; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
// AWS_SESSION_TOKEN of the environment; those of the profile in AWS_PROFILE, or
// of the default one. A profile is resolved by the AWS command line tool (version
// 2), "aws configure export-credentials", which knows the whole chain: files,
// roles, single sign-on, web identity, and the metadata of a container or an
// instance. With keys in the environment nothing else is asked.
//
// The region is that in the broker's host name, else AWS_REGION or
// AWS_DEFAULT_REGION.
type AWS struct {
	Profile string
	// Getenv reads the environment; nil is os.Getenv.
	Getenv func(string) string
	// UserAgent is what the broker is told of the client; "" is the library's.
	UserAgent string
}

func (a AWS) mechanism(now func() time.Time) sasl.Mechanism {
	if a.Getenv == nil {
		a.Getenv = os.Getenv
	}
	var mu sync.Mutex
	var cached aws.Auth
	var until time.Time
	return aws.ManagedStreamingIAM(func(ctx context.Context) (aws.Auth, error) {
		mu.Lock()
		defer mu.Unlock()
		if cached.AccessKey != "" && now().Before(until) {
			return cached, nil
		}
		auth, expiry, err := a.credentials(ctx)
		if err != nil {
			return auth, err
		}
		auth.UserAgent = a.UserAgent
		cached, until = auth, expiry.Add(-refreshMargin)
		if expiry.IsZero() {
			until = now().Add(unknownLifetime)
		}
		return auth, nil
	})
}

// RunsCommand reports whether the credentials come from the AWS command line
// tool, and not from the environment.
func (a AWS) RunsCommand() bool {
	getenv := a.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}
	return a.Profile != "" || getenv("AWS_ACCESS_KEY_ID") == "" || getenv("AWS_SECRET_ACCESS_KEY") == ""
}

// credentials returns what is valid now, and until when; the zero time is not
// known.
func (a AWS) credentials(ctx context.Context) (aws.Auth, time.Time, error) {
	if !a.RunsCommand() {
		return aws.Auth{AccessKey: a.Getenv("AWS_ACCESS_KEY_ID"), SecretKey: a.Getenv("AWS_SECRET_ACCESS_KEY"), SessionToken: a.Getenv("AWS_SESSION_TOKEN")}, time.Time{}, nil
	}
	argv := []string{"aws", "configure", "export-credentials", "--format", "process"}
	if p := cmp.Or(a.Profile, a.Getenv("AWS_PROFILE")); p != "" {
		argv = append(argv, "--profile", p)
	}
	out, err := CommandSecret(ctx, argv)
	if err != nil {
		if e, ok := errors.AsType[*CredentialError](err); ok {
			e.What = "credentials of AWS_MSK_IAM from command \"aws\""
			e.Advice = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or see what 'aws configure export-credentials' says"
		}
		return aws.Auth{}, time.Time{}, err
	}
	var doc struct {
		AccessKeyID, SecretAccessKey, SessionToken string // the names are AWS's
		Expiration                                 time.Time
	}
	if json.Unmarshal([]byte(out), &doc) != nil || doc.AccessKeyID == "" || doc.SecretAccessKey == "" {
		return aws.Auth{}, time.Time{}, &CredentialError{
			What: "credentials of AWS_MSK_IAM from command \"aws\"", Err: errors.New("its output has none"),
			Advice: "version 2 of the AWS command line tool is needed",
		}
	}
	return aws.Auth{AccessKey: doc.AccessKeyID, SecretKey: doc.SecretAccessKey, SessionToken: doc.SessionToken}, doc.Expiration, nil
}
